import { existsSync, readFileSync } from 'node:fs'
import { fileURLToPath, pathToFileURL } from 'node:url'
import type { Page } from '@playwright/test'
import { expect, test } from './browser'

const at = (path: string): string => fileURLToPath(new URL(`../../${path}`, import.meta.url))
const axe = readFileSync(at('node_modules/axe-core/axe.min.js'), 'utf8')
const measured = existsSync(at('dist/data/memory.json')) ? JSON.parse(readFileSync(at('dist/data/memory.json'), 'utf8')) as { device: string; points: Record<string, string | number>[] } : null
const plain = (text: string): string => text.replaceAll(',', '')
const cells = (page: Page, selector: string, nth = 0): Promise<string[][]> => page.locator(selector).nth(nth).locator('tbody tr')
  .evaluateAll((rows) => rows.map((row) => [...row.children].map((one) => one.textContent ?? '')))

test.describe('the square', () => {
  test('the slider moves the squares, the cursor and every number, by formula', async ({ page }) => {
    await page.goto('/')
    const slider = page.getByLabel('Length of the text, T')
    await slider.focus()
    const seen = new Set<string>()
    for (const key of ['Home', 'ArrowRight', 'PageUp', 'End', 'ArrowLeft']) {
      await page.keyboard.press(key)
      const T = Number(plain(await page.locator('#square-body output').innerText()).split(' ')[0])
      const facts = await page.locator('.facts dd').allInnerTexts()
      expect(Number(plain(facts[0]!))).toBe(T * T)
      const [now, fixed] = await Promise.all(['.now', '.fixed'].map(async (name) => Number(await page.locator(`.to-scale rect${name}`).getAttribute('width'))))
      expect(now! / fixed!).toBeCloseTo(T / 1024, 6)
      expect(Math.max(now!, fixed!)).toBeCloseTo(200, 6)
      const words = await page.locator('#square-body .reading').innerText()
      expect(plain(words)).toContain(`${T} tokens: the scores take`)
      expect(await slider.getAttribute('aria-valuetext')).toBe(words)
      seen.add(await page.locator('#square-body .cursor').getAttribute('transform') ?? '')
    }
    expect(seen.size).toBe(5)
  })

  test('pointing at the chart moves the same cursor', async ({ page }) => {
    await page.goto('/')
    const plot = page.locator('#square-body .plot')
    await plot.scrollIntoViewIfNeeded()
    const box = (await plot.boundingBox())!
    await page.mouse.move(box.x + 120, box.y + 100)
    const left = await page.locator('#square-body output').innerText()
    await page.mouse.move(box.x + box.width - 160, box.y + 100)
    expect(await page.locator('#square-body output').innerText()).not.toBe(left)
    await page.mouse.down()
    await page.mouse.up()
    await expect(page.getByLabel('Length of the text, T')).toBeFocused()
  })

  test('the table of the formula, and of what was measured: the numbers of the file, or a sentence that there are none', async ({ page }) => {
    await page.goto('/')
    await page.locator('#square summary').click()
    const formula = await cells(page, '#square-formula')
    expect(formula).toHaveLength(11)
    for (const [T, scores, square, rows] of formula.map((row) => row.map((text) => Number(plain(text))))) {
      expect([scores, square, rows]).toEqual([T! * T!, 32 * T! * T!, 4096 * T!])
    }
    if (measured === null) {
      await expect(page.locator('#memory-source')).toContainText('Nothing was measured')
      await expect(page.locator('#square-measured')).toHaveCount(0)
      await expect(page.locator('#square-body .plot .mark')).toHaveCount(0)
      return
    }
    await expect(page.locator('#memory-source')).toContainText(`measured on ${measured.device} with PyTorch`)
    const line = (one: readonly string[]): string => one.map(plain).join(' ')
    const inFile = measured.points.map((point) => [point['backend'], point['dtype'], point['tokens'], point['growth_bytes'], point['seconds']].map(String))
    expect((await cells(page, '#square-measured')).map(line).sort()).toEqual(inFile.map(line).sort())
    const told = (await page.locator('#square-body .plot .mark title').allTextContents()).map(plain)
    for (const [backend, dtype, tokens, bytes, seconds] of inFile) {
      if (Number(bytes) > 0) expect(told).toContain(`${backend} ${dtype} ${tokens} tokens: ${bytes} bytes ${seconds} s`)
    }
  })
})

const run = {
  name: 'first', parameters: 1234, tokenizer: 'bpe', data: 'fables', torch: '2.13.0', steps: 300, floor_bits_per_byte: 0.25,
  train: [[1, 4.5, 4.75], [50, 1.125, 2.5], [200, 1, 1.5]], val: [[100, 1.25, 0.5], [200, 1.0625, 0.4375], [300, 1.03125, 0.40625]],
}
const whole = JSON.stringify({ schema: 'octlm-web-runs/1', runs: [run, { ...run, name: 'second', tokenizer: 'byte', floor_bits_per_byte: null, val: [[150, 2.5, 3.5]] }] })

/** Answer for runs.json with one body after another; the last one stays. */
async function answer(page: Page, ...bodies: readonly (string | number)[]): Promise<() => number> {
  let asked = 0
  await page.route('**/data/runs.json', (route) => {
    const body = bodies[Math.min(asked++, bodies.length - 1)]!
    return typeof body === 'number' ? route.fulfill({ status: body, body: '' }) : route.fulfill({ body, contentType: 'application/json' })
  })
  return () => asked
}

test.describe('the runs', () => {
  test('are fetched once, when the reader comes near, and drawn with a cursor that reads out the exact numbers', async ({ page }) => {
    const asked = await answer(page, whole)
    await page.goto('/')
    await expect(page.locator('#badge')).toHaveClass('badge good')
    await page.waitForTimeout(300)
    expect(asked()).toBe(0)
    await page.locator('#runs').scrollIntoViewIfNeeded()
    const slider = page.getByLabel('Step', { exact: true })
    await expect(slider).toBeVisible()
    expect(asked()).toBe(1)
    const reading = page.locator('#runs-body .reading')
    await expect(reading).toHaveText('Step 300, bits per byte. first: validation 0.40625.')
    await slider.focus()
    await page.keyboard.press('ArrowLeft')
    await expect(reading).toHaveText('Step 200, bits per byte. first: validation 0.4375.')
    await page.keyboard.press('ArrowLeft')
    await expect(reading).toHaveText('Step 100, bits per byte. first: validation 0.5.')
    await expect(slider).toHaveAttribute('aria-valuetext', 'Step 100, bits per byte. first: validation 0.5.')
    await page.locator('label[for=runs-unit-nats]').click()
    await expect(reading).toHaveText('Step 100, nats per token. first: validation 1.25, train 1.125 to 2.5 (of step 50).')
    await expect(page.locator('#runs-body .band')).toHaveCount(1)
    await page.locator('label[for=runs-only-null]').click()
    await expect(reading).toContainText('; second: train 1.125 to 2.5 (of step 50).')
    await expect(page.locator('#runs-body .plot .label')).toHaveText(['first', 'second'])
    expect(new Set(await page.locator('#runs-body .plot g > .line').evaluateAll((all) => all.map((one) => getComputedStyle(one).strokeDasharray))).size).toBe(2)
    const place = (): Promise<string | null> => page.locator('#runs-body .mark').first().getAttribute('cx')
    const linear = await place()
    await page.locator('label[for=runs-axis-log]').click()
    expect(await place()).not.toBe(linear)
    await page.locator('label[for=runs-unit-bits]').click()
    await expect(page.locator('#runs-body .plot .label')).toHaveText(['first', 'floor of first', 'second'])
    await expect(page.locator('#runs-body')).toContainText('only on the same text')
    const plot = page.locator('#runs-body .plot')
    await plot.hover({ position: { x: (await plot.boundingBox())!.width / 2, y: 80 } }) // waits while sections above still grow
    await expect(reading).not.toContainText('Step 100,')
    await page.locator('#why').scrollIntoViewIfNeeded() // away and back: nothing is fetched again
    await page.waitForTimeout(200)
    await page.locator('#runs').scrollIntoViewIfNeeded()
    await page.waitForTimeout(200)
    expect(asked()).toBe(1)
  })

  test('the table has the numbers of the file', async ({ page }) => {
    await answer(page, whole)
    await page.goto('/')
    await page.locator('#runs').scrollIntoViewIfNeeded()
    await page.getByText('Show all numbers of first').click()
    await expect(page.locator('#runs-body table')).toHaveCount(2)
    const shown = [await cells(page, '#runs-body table', 0), await cells(page, '#runs-body table', 1)]
    expect(shown).toEqual([run.val.map((row) => row.map(String)), run.train.map((row) => row.map(String))])
  })

  test('the exported file is drawn, number by number', async ({ page }) => {
    test.skip(!existsSync(at('dist/data/runs.json')), 'this build has no runs.json')
    const { runs } = JSON.parse(readFileSync(at('dist/data/runs.json'), 'utf8')) as { runs: (typeof run)[] }
    await page.goto('/')
    await page.locator('#runs').scrollIntoViewIfNeeded()
    for (const [i, { name, val, train }] of runs.entries()) {
      await page.getByText(`Show all numbers of ${name}`, { exact: true }).click()
      await expect(page.locator('#runs-body table')).toHaveCount(2 * i + 2)
      for (const [n, rows] of [val, train].entries()) {
        expect(await cells(page, '#runs-body table', 2 * i + n)).toEqual(rows.map((row) => row.map(String)))
      }
    }
  })

  for (const [what, body, words] of [
    ['a missing file', 404, 'the server answered 404'],
    ['another schema', whole.replace('runs/1', 'runs/9'), 'its schema is octlm-web-runs/9; this page reads octlm-web-runs/1'],
    ['a file that was cut off', whole.slice(0, -40), 'no whole JSON'],
    ['a loss that is no number', whole.replace('1.0625', 'null'), 'the losses of run first'],
  ] as const) {
    test(`${what}: a sentence and a Retry that works`, async ({ page, problems }) => {
      await answer(page, body, body, whole)
      await page.goto('/')
      await page.locator('#runs').scrollIntoViewIfNeeded()
      const state = page.locator('#runs-body .load-state')
      await expect(state).toContainText(words)
      await page.getByRole('button', { name: 'Retry' }).click()
      await expect(state).toContainText(words)
      await page.getByRole('button', { name: 'Retry' }).click()
      await expect(page.locator('#runs-body .reading')).toContainText('first: validation')
      await expect(state).toHaveText('')
      if (body === 404) expect(problems.splice(0).every((problem) => problem.includes('404'))).toBe(true) // the browser's own note
    })
  }

  test('a connection that fails: a sentence and a Retry', async ({ page, problems }) => {
    await page.route('**/data/runs.json', (route) => route.abort())
    await page.goto('/')
    await page.locator('#runs').scrollIntoViewIfNeeded()
    await expect(page.locator('#runs-body')).toContainText('the connection failed')
    await expect(page.getByRole('button', { name: 'Retry' })).toBeVisible()
    expect(problems.splice(0).every((problem) => problem.includes('ERR_FAILED'))).toBe(true)
  })

  test('opened from a file, the section says why there is nothing, and asks for nothing', async ({ page }) => {
    await page.goto(pathToFileURL(at('dist/index.html')).href)
    await page.locator('#runs').scrollIntoViewIfNeeded()
    await expect(page.locator('#runs-body')).toContainText('do not let a page that was opened from a file read other files')
    await expect(page.locator('#square-body .plot svg')).toBeVisible()
  })
})

for (const colorScheme of ['light', 'dark'] as const) {
  for (const width of [320, 1280]) {
    test(`axe finds nothing, nothing scrolls sideways: ${colorScheme}, ${width} px, tables open`, async ({ page }) => {
      await answer(page, whole)
      await page.setViewportSize({ width, height: 800 })
      await page.emulateMedia({ colorScheme, reducedMotion: 'reduce' })
      await page.goto('/')
      await page.locator('#square summary').click()
      await page.locator('#runs').scrollIntoViewIfNeeded()
      await page.locator('label[for=runs-unit-nats]').click()
      for (const summary of await page.locator('#runs summary').all()) await summary.click()
      expect(await page.evaluate(() => document.documentElement.scrollWidth)).toBeLessThanOrEqual(width)
      for (const text of await page.locator('.chart .label').all()) {
        const box = (await text.boundingBox())!
        expect(box.x + box.width).toBeLessThanOrEqual(width)
      }
      await page.evaluate(axe)
      const found = await page.evaluate(async () => {
        const { axe } = window as unknown as { axe: { run: (c: object, o: object) => Promise<{ violations: { id: string; nodes: { html: string; failureSummary: string }[] }[] }> } }
        const { violations } = await axe.run({ include: [['#square'], ['#runs']] }, { runOnly: ['wcag2a', 'wcag2aa', 'wcag21aa', 'wcag22aa', 'best-practice'] })
        return violations.map(({ id, nodes }) => `${id}: ${nodes[0]?.html.slice(0, 120)} ${nodes[0]?.failureSummary.slice(0, 300)}`)
      })
      expect(found).toEqual([])
    })
  }
}
