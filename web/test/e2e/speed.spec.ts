/**
 * How long the page takes, beside what its design allows.
 *
 * The figures are printed. The machine is shared, so what is asserted is three times the bound: it catches a page that hangs.
 */
import type { Page } from '@playwright/test'
import { STEPS, expect, open, test } from './browser'

const SLACK = 3

function judge(what: string, times: readonly number[], bound: number): void {
  const sorted = [...times].sort((a, b) => a - b)
  const median = sorted[Math.floor(sorted.length / 2)]!
  console.log(`      ${what}: median ${median.toFixed(1)} ms of ${times.length}, largest ${sorted.at(-1)!.toFixed(1)} ms; the design allows ${bound} ms${median > bound ? ' (OVER)' : ''}`)
  expect(median, what).toBeLessThanOrEqual(SLACK * bound)
}

test('at a quarter of the speed the page paints, and its first step can be used', async ({ page }) => {
  const session = await page.context().newCDPSession(page)
  await session.send('Emulation.setCPUThrottlingRate', { rate: 4 })
  const painted: number[] = []
  const usable: number[] = []
  await page.addInitScript(() => { // the moment at which the first step is there: its table built, its listeners attached
    const watch = new MutationObserver(() => {
      if (!document.querySelector('#walk-body td[role=gridcell][tabindex="0"]')) return
      performance.mark('usable')
      watch.disconnect()
    })
    watch.observe(document, { subtree: true, childList: true, attributes: true })
  })
  for (let i = 0; i < 5; i++) {
    await page.goto('about:blank')
    await page.goto('/')
    await expect(page.locator('#panel-result')).not.toBeEmpty()
    const [paint, use] = await page.evaluate(async () => {
      const first = await new Promise<number>((resolve) => new PerformanceObserver((list) => {
        const found = list.getEntriesByName('first-contentful-paint')[0]
        if (found) resolve(found.startTime)
      }).observe({ type: 'paint', buffered: true }))
      return [first, performance.getEntriesByName('usable')[0]?.startTime ?? NaN]
    })
    painted.push(paint!)
    usable.push(use!)
  }
  await session.send('Emulation.setCPUThrottlingRate', { rate: 1 })
  await session.detach()
  judge('first contentful paint, CPU / 4', painted, 800)
  judge('first step operable, CPU / 4', usable, 1200)
})

/** From an action to the next frame that shows it. */
const timed = (page: Page, selector: string, kind: 'click' | 'input', value = ''): Promise<number> => page.evaluate(async ([selector, kind, value]) => {
  const element = document.querySelector<HTMLInputElement>(selector!)!
  const start = performance.now()
  if (kind === 'input') {
    element.value = value!
    element.dispatchEvent(new Event('input', { bubbles: true }))
  } else element.click()
  void document.body.offsetHeight // style and layout, too
  return performance.now() - start
}, [selector, kind, value] as const)

for (const heads of ['one', 'both']) {
  test(`a change of step, ${heads === 'one' ? 'one head' : 'both heads'}`, async ({ page }) => {
    await page.goto(`/#heads=${heads}`)
    const times: number[] = []
    for (let round = 0; round < 5; round++) for (const step of [...STEPS].reverse()) times.push(await timed(page, `#tab-${step}`, 'click'))
    judge(`step change, ${heads}`, times, 50)
  })
}

test('an edit recomputes the whole layer', async ({ page }) => {
  await page.goto('/')
  const times: number[] = []
  for (let i = 0; i < 25; i++) times.push(await timed(page, '#edit-amount', 'input', String(-3 + i * 0.2)))
  judge('edit', times.slice(5), 16)
})

test('writing leaves the page at hand: no task over 100 ms', async ({ page }) => {
  await open(page, 'seed=5')
  await page.evaluate(() => {
    const seen: number[] = []
    Object.assign(window, { seen })
    new PerformanceObserver((list) => seen.push(...list.getEntries().map(({ duration }) => duration))).observe({ entryTypes: ['longtask'] })
  })
  await page.locator('#write-on').click()
  await page.waitForTimeout(3000)
  await page.locator('#write-on').click({ timeout: 1000 }).catch(() => undefined) // the text may have ended
  const longest = await page.evaluate(() => Math.max(0, ...(window as unknown as { seen: number[] }).seen))
  const time = await page.locator('#cache-time').textContent()
  console.log(`longest task while writing: ${longest} ms (at most 100); a token: ${time} (at most 20 ms)`)
  expect(longest).toBeLessThanOrEqual(300) // the figure above is the claim; this is a limit for shared machines
})
