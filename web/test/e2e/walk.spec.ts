import { STEPS, cell, expect, test } from './browser'

test('by keyboard alone: reach, read, pin a cell; switch the mask; run every position of the experiment', async ({ page }) => {
  await page.goto('/')
  await page.keyboard.press('Tab')
  await expect(page.locator(':focus')).toHaveText('Skip to the nine steps')
  await page.keyboard.press('Enter')
  await page.keyboard.press('Tab')
  await expect(page.getByRole('tab', { name: 'Step 1: Input' })).toBeFocused()
  for (let i = 0; i < 5; i++) await page.keyboard.press('ArrowRight')
  await expect(page.getByRole('tab', { name: 'Step 6: Softmax' })).toBeFocused()
  await expect(page.getByRole('tab', { name: 'Step 6: Softmax' })).toHaveAttribute('aria-selected', 'true')
  await page.keyboard.press('Tab')
  await page.keyboard.press('ArrowRight')
  await expect(page.locator('#head-1')).toBeChecked()
  for (let i = 0; i < 12 && (await page.locator(':focus').getAttribute('role')) !== 'gridcell'; i++) await page.keyboard.press('Tab')
  await expect(cell(page, 5, 2)).toBeFocused()
  await page.keyboard.press('Control+Home')
  await expect(cell(page, 0, 0)).toBeFocused()
  await expect(page.locator('#panel-result')).toHaveText('1.00000')
  for (let i = 0; i < 5; i++) await page.keyboard.press('ArrowDown')
  await page.keyboard.press('ArrowRight')
  await page.keyboard.press('ArrowRight')
  await expect(page.locator('.cell-name')).toHaveText('weight[t5, t2] of head 2')
  await expect(page.locator('#panel-difference')).toHaveClass('good')
  await page.keyboard.press('Enter')
  await expect(cell(page, 5, 2)).toHaveAttribute('aria-selected', 'true')
  await expect(page.getByRole('status').filter({ hasText: 'Pinned. weight[t5, t2] of head 2 is' })).toHaveCount(1)
  await page.keyboard.press('ArrowUp') // pinned: the panel stays
  await expect(page.locator('.cell-name')).toHaveText('weight[t5, t2] of head 2')
  await page.keyboard.press('Escape')
  await expect(page.locator('[aria-selected=true][role=gridcell]')).toHaveCount(0)
  await page.keyboard.press('[')
  await expect(page.locator('#head-0')).toBeChecked()
  await page.keyboard.press('PageDown')
  await expect(page.locator('#step-title')).toHaveText('7. Weighted values')
  expect(await page.evaluate(() => document.activeElement?.getAttribute('role'))).toBe('gridcell')

  const radio = page.locator('input[name=p]')
  for (let i = 0; i < 20 && (await page.locator(':focus').getAttribute('name')) !== 'p'; i++) await page.keyboard.press('Tab')
  await expect(radio.nth(5)).toBeFocused()
  for (let i = 0; i < 5; i++) await page.keyboard.press('ArrowLeft')
  for (let p = 0; p < 8; p++) {
    await expect(radio.nth(p)).toBeChecked()
    await expect(page.locator('#future .verdict-line')).toContainText(p === 0 ? 'no earlier rows' : 'moved by exactly 0')
    await page.keyboard.press('ArrowRight')
  }
  await page.keyboard.press('Tab')
  await page.keyboard.press('ArrowRight')
  await page.keyboard.press('Shift+Tab')
  await page.keyboard.press('ArrowRight')
  await expect(page.locator('#future .verdict-line')).toContainText('LEAK')
})

test('the focus is always visible, and goes through the page once without a trap', async ({ page }) => {
  await page.goto('/#step=softmax')
  const seen: string[] = []
  for (let i = 0; i < 150; i++) {
    await page.keyboard.press('Tab')
    const now = await page.evaluate(() => {
      const element = document.activeElement
      if (!element || element === document.body) return ''
      const label = element instanceof HTMLInputElement && element.type === 'radio' ? element.nextElementSibling! : element
      const { outlineStyle, outlineWidth } = getComputedStyle(label)
      const id = [...document.querySelectorAll('*')].indexOf(element)
      return `${id} ${element.tagName} ${outlineStyle !== 'none' && parseFloat(outlineWidth) >= 2}`
    })
    if (now === '' || seen.includes(now)) break
    expect(now).toContain('true')
    seen.push(now)
  }
  expect(seen.length).toBeGreaterThan(15)
  expect(seen.length).toBeLessThan(150)
  const order = seen.map((text) => Number.parseInt(text, 10))
  expect(order).toEqual([...order].sort((a, b) => a - b))
})

test('by mouse: pointing previews, a click pins, a second click or Esc lets go', async ({ page }) => {
  await page.goto('/#step=scores')
  const name = page.locator('.cell-name')
  await expect(name).toHaveText('score[t5, t2] of head 1')
  await cell(page, 3, 6).hover()
  await expect(name).toHaveText('score[t3, t6] of head 1')
  await page.locator('#step-title').hover()
  await expect(name).toHaveText('score[t5, t2] of head 1')
  await cell(page, 3, 6).click()
  await cell(page, 1, 1).hover()
  await expect(name).toHaveText('score[t3, t6] of head 1')
  await expect(page.locator('.figure .source').first().locator('td.lit')).toHaveCount(8)
  await cell(page, 3, 6).click()
  await cell(page, 1, 1).hover()
  await expect(name).toHaveText('score[t1, t1] of head 1')
  await page.getByRole('button', { name: 'Next' }).click()
  await expect(page.locator('#step-title')).toHaveText('4. Scale')
})

test.describe('touch', () => {
  test.use({ hasTouch: true, viewport: { width: 360, height: 740 } })
  test('a tap pins, and the panel with the number is in view', async ({ page }) => {
    await page.goto('/#step=scores')
    await cell(page, 4, 1).scrollIntoViewIfNeeded()
    await cell(page, 4, 1).tap()
    await expect(cell(page, 4, 1)).toHaveClass(/pinned/)
    await expect(page.locator('#panel-result')).toBeInViewport()
    await expect(page.locator('.cell-name')).toHaveText('score[t4, t1] of head 1')
  })
})

test('every cell of every step, head and mask shows PyTorch’s number within 1e-6, and masked cells say so', async ({ page }) => {
  for (const mask of ['causal', 'none']) {
    for (const head of ['head=1', 'head=2', 'heads=both']) {
      for (const [n, step] of STEPS.entries()) {
        await page.goto(`/#step=${step}&${head}&mask=${mask}`)
        await page.reload()
        await expect(page.locator('#step-title')).toContainText(`${n + 1}. `)
        const { wrong, count, hidden } = await page.evaluate(() => {
          const found = { wrong: [] as string[], count: 0, hidden: 0 }
          for (const td of document.querySelectorAll<HTMLElement>('.result td[role=gridcell]')) {
            td.focus()
            found.count++
            const [own, torch, off] = ['result', 'torch', 'difference'].map((id) => document.getElementById(`panel-${id}`)?.textContent ?? '')
            const number = (text = ''): number => Number(text.replaceAll('\u2212', '-').replace('\u221e', 'Infinity').replace(' (exact)', ''))
            const near = own === torch || Math.abs(number(own) - number(torch)) < 3e-6 // 6 digits shown
            const inCell = td.firstChild?.textContent ?? ''
            const agrees = inCell === '~0' ? Math.abs(number(own)) < 0.0051 : number(inCell) === number(own) || Math.abs(number(inCell) - number(own)) < 0.0051
            if (!near || !agrees || !(number(off) <= 1e-6)) found.wrong.push(`${inCell}: ${own} ${torch} ${off}`)
            if (td.classList.contains('masked') && /masked, t\d is after t\d/.test(td.textContent ?? '')) found.hidden++
          }
          return found
        })
        expect(wrong).toEqual([])
        const times = head === 'heads=both' ? 2 : 1
        expect(count).toBe(step === 'qkv' ? 192 * times : ['input', 'concat', 'output'].includes(step) ? 128 : 64 * times)
        expect(hidden).toBe(mask === 'causal' && ['mask', 'softmax'].includes(step) ? 28 * times : 0)
      }
    }
  }
})

test('every table of colours has a legend with its two ends', async ({ page }) => {
  for (const step of STEPS) {
    await page.goto(`/#step=${step}`)
    await page.reload()
    const tables = await page.locator('#walk table.matrix, #future table.matrix').count()
    const legends = await page.locator('#walk .legend, #future .legend').allInnerTexts()
    expect(legends).toHaveLength(tables)
    for (const text of legends) expect(text).toMatch(/^(0|0\.0001|\u2212\d+\.\d\d?)\s+(1\.00|10, each step tenfold|\+\d+\.\d\d?)$/)
  }
})

test('weights are there on demand, and light up where they are used', async ({ page }) => {
  await page.goto('/#step=qkv&head=2&cell=5,3')
  await page.getByText('Show the three weight matrices').click()
  const rows = page.locator('.figure details table').first().locator('tbody tr')
  await expect(rows).toHaveCount(8)
  await expect(rows.nth(3).locator('td.lit')).toHaveCount(16)
  await expect(page.locator('.figure details td.lit')).toHaveCount(16)
})

test('all digits: the products add up to the number', async ({ page }) => {
  await page.goto('/#step=scores&digits=9')
  const sum = await page.evaluate(() => {
    const number = (text: string | null | undefined): number => Number((text ?? '').replaceAll('\u2212', '-'))
    const rows = [...document.querySelectorAll('.terms tbody tr')].map((row) => [...row.querySelectorAll('td')].map((td) => number(td.textContent)))
    return rows.reduce((total, [a, b]) => total + Math.fround(a ?? 0) * Math.fround(b ?? 0), 0)
  })
  const shown = (await page.locator('#panel-result').textContent())?.replaceAll('\u2212', '-')
  expect(Math.fround(sum)).toBe(Math.fround(Number(shown)))
})

test('both heads: each has its table, and the chosen cell belongs to the head whose table it stands in', async ({ page }) => {
  await page.goto('/#step=scores')
  await page.locator('label[for=head-both]').click()
  const name = page.locator('.cell-name')
  await expect(page.locator('.result table[role=grid]')).toHaveCount(2)
  await expect(page.locator('.source table')).toHaveCount(4)
  await cell(page, 3, 6, 1).click()
  await expect(name).toHaveText('score[t3, t6] of head 2')
  await expect(page.locator('td.chosen')).toHaveCount(1)
  await expect(cell(page, 3, 6, 1)).toHaveClass(/pinned/)
  await expect(page.locator('.source').nth(2).locator('td.lit')).toHaveCount(8) // q of head 2; the tables of head 1 stay dark
  await expect(page.locator('.source td.lit')).toHaveCount(16)
  await expect(page).toHaveURL(/#step=scores&head=2&heads=both&cell=3,6$/)
  await page.keyboard.press('Escape')
  await page.keyboard.press('[')
  await expect(cell(page, 3, 6, 0)).toBeFocused()
  await expect(name).toHaveText('score[t3, t6] of head 1')
  await page.locator('label[for=head-1]').click()
  await expect(page.locator('.result table[role=grid]')).toHaveCount(1)
  await expect(page.locator('.result caption').first()).toContainText('scores, head 2')
  await page.goto('/#step=qkv&head=2&heads=both&cell=5,3&part=k')
  await page.reload()
  await page.getByText('Show the three weight matrices').click()
  await expect(page.locator('.figure details table')).toHaveCount(6)
  await expect(page.locator('.figure details td.lit')).toHaveCount(16)
  await expect(page.locator('.figure details table').nth(4).locator('tbody tr').nth(3).locator('td.lit')).toHaveCount(16)
})

test('colours of the weights: 0 to 1, or up to the largest of each row, and the legend says which', async ({ page }) => {
  await page.goto('/#step=softmax')
  const colour = (row: number, column: number): Promise<string> => cell(page, row, column).evaluate((element) => element.style.getPropertyValue('--light'))
  const legend = page.locator('.result .legend')
  await expect(legend).toHaveText('01.00')
  expect(await colour(0, 0)).toBe('#54278f')
  expect(await colour(7, 4)).not.toBe('#54278f')
  await page.locator('label[for=colours-row]').click()
  await expect(legend).toHaveText('0the row’s largest')
  for (let row = 0; row < 8; row++) {
    const colours = await Promise.all(Array.from({ length: row + 1 }, (_, column) => colour(row, column)))
    expect(colours.filter((one) => one === '#54278f').length, `row ${row}`).toBeGreaterThanOrEqual(1)
  }
  await expect(cell(page, 0, 0)).toHaveText('1.00') // the numbers stay
  await page.getByRole('tab', { name: 'Step 7' }).click()
  await expect(page.locator('#colours-row')).toBeHidden()
  await expect(page.locator('.source .legend').first()).toHaveText('01.00')
})

test('the small pictures of all heads have the colours of the large table, and choose the head', async ({ page }) => {
  await page.goto('/#step=softmax')
  const small = page.locator('.thumbnail')
  await expect(small).toHaveCount(2)
  for (const head of [1, 0]) {
    await small.nth(head).click()
    await expect(small.nth(head)).toHaveAttribute('aria-pressed', 'true')
    await expect(page.locator(`#head-${head}`)).toBeChecked()
    const [large, tiny] = await page.evaluate((n) => [document.querySelectorAll<HTMLElement>('.result td[role=gridcell]'), document.querySelectorAll('.thumbnail')[n]!.querySelectorAll<HTMLElement>('.cells span')]
      .map((cells) => [...cells].map((one) => (one.classList.contains('masked') ? 'masked' : one.style.getPropertyValue('--light')))), head)
    expect(tiny).toEqual(large)
  }
})

test('two digits: the panel shows two, and says so', async ({ page }) => {
  await page.goto('/#step=scores')
  await page.locator('label[for=digits-2]').click()
  await expect(page.locator('#panel-result')).toHaveText(/^\u2212?\d+(\.\d+)?$/)
  expect((await page.locator('#panel-result').innerText()).replace(/[^1-9]/g, '').length).toBeLessThanOrEqual(2)
  await expect(page.locator('.panel')).toContainText('Shown to 2 digits')
})

test('the walk stands still while only another section changes', async ({ page }) => {
  await page.goto('/#step=softmax')
  await page.evaluate(() => {
    const seen = window as unknown as { moved: number }
    seen.moved = 0
    new MutationObserver((all) => { seen.moved += all.length }).observe(document.getElementById('walk-body')!, { subtree: true, childList: true, attributes: true, characterData: true })
  })
  await page.locator('label[for=p-3]').click()
  await page.getByLabel('and', { exact: true }).selectOption('zero')
  await page.evaluate(() => { location.hash = 'step=softmax&text=Two&layer=2&temp=0.3&seed=5&p=2' })
  await expect(page.locator('#p-2')).toBeChecked()
  expect(await page.evaluate(() => (window as unknown as { moved: number }).moved)).toBe(0)
})
