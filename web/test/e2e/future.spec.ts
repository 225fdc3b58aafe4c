import { expect, test } from './browser'

const number = (text: string): number => Number(text.replaceAll('\u2212', '-'))

for (const edit of ['nudge:1.5', 'zero', 'copy:2', 'set:3:1000']) {
  test(`${edit}: nothing before the edit moves through the mask, everything without it, at every position`, async ({ page }) => {
    await page.goto(`/#edit=${edit}`)
    for (const mask of ['causal', 'none']) {
      await page.locator(`label[for=future-mask-${mask}]`).click()
      for (let p = 0; p < 8; p++) {
        if (edit === `copy:${p}`) continue
        await page.locator(`label[for=p-${p}]`).click()
        const sizes = await page.locator('#future .change-list .size').allTextContents()
        const words = await page.locator('#future .change-list .word').allTextContents()
        const map = await page.locator('#future .change-map tbody tr').evaluateAll((rows) => rows.map((row) => [...row.querySelectorAll('td')].map((td) => td.textContent ?? '')))
        for (let t = 0; t < 8; t++) {
          if (mask === 'none') expect(number(sizes[t]!)).toBeGreaterThan(0)
          if (t >= p) continue
          expect(words[t]).toBe(mask === 'causal' ? 'unchanged' : 'LEAK')
          if (mask === 'causal') expect(sizes[t]).toBe('0 (exact)')
          const row = map[t]!.map(number)
          expect(row.slice(0, 4)).toEqual([0, 0, 0, 0]) // x q k v
          expect(row[4]).toBeGreaterThan(0) // scores
          if (mask === 'causal') expect(row.slice(6)).toEqual([0, 0, 0, 0, 0])
          else for (const value of row.slice(6)) expect(value).toBeGreaterThan(0)
        }
        await expect(page.locator('#future .verdict-line')).toContainText(p === 0 ? 'no earlier rows' : mask === 'causal' ? 'exactly 0' : 'LEAK')
      }
    }
  })
}

test('a number that is not finite is refused in words, and the last good one stays', async ({ page }) => {
  await page.goto('/#edit=set:3:2')
  const box = page.getByLabel('becomes')
  const before = await page.locator('#future .change-list .size').allTextContents()
  for (const bad of ['NaN', 'Infinity', 'abc', '1e999', '']) {
    await box.fill(bad)
    await box.press('Enter')
    await expect(page.locator('#edit-problem')).toContainText('is not a finite number')
    expect(await page.locator('#future .change-list .size').allTextContents()).toEqual(before)
  }
  await box.fill('\u22125')
  await box.press('Enter')
  await expect(page.locator('#edit-problem')).toHaveText('')
  expect(await page.locator('#future .change-list .size').allTextContents()).not.toEqual(before)
})

test('the mask is one switch for both sections', async ({ page }) => {
  await page.goto('/#step=mask')
  await expect(page.locator('.result td.masked')).toHaveCount(28)
  await page.locator('label[for=future-mask-none]').click()
  await expect(page.locator('.result td.masked')).toHaveCount(0)
  await expect(page.locator('#walk-mask-none')).toBeChecked()
})
