import { createHash } from 'node:crypto'
import { cpSync, mkdtempSync, readFileSync } from 'node:fs'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { tmpdir } from 'node:os'
import { extname, join } from 'node:path'
import { fileURLToPath, pathToFileURL } from 'node:url'
import { STEPS, cell, expect, test } from './browser'

const dist = fileURLToPath(new URL('../../dist/', import.meta.url))
const axe = readFileSync(fileURLToPath(new URL('../../node_modules/axe-core/axe.min.js', import.meta.url)), 'utf8')

test.describe('the address', () => {
  test('holds the state over a reload, and Back leaves the page once', async ({ page }) => {
    await page.goto('about:blank')
    await page.goto('/')
    await page.getByRole('tab', { name: 'Step 6' }).click()
    await page.locator('label[for=head-1]').click()
    await cell(page, 6, 4).click()
    await page.locator('label[for=walk-mask-none]').click()
    await page.locator('label[for=p-3]').click()
    await page.getByLabel('and', { exact: true }).selectOption('copy')
    await page.getByLabel('from', { exact: true }).selectOption('7')
    await page.locator('label[for=digits-9]').click()
    await page.locator('label[for=colours-row]').click()
    await expect(page).toHaveURL(/#step=softmax&head=2&cell=6,4&mask=none&digits=9&colour=row&p=3&edit=copy:7$/)
    const shown = async (): Promise<unknown> => [await page.locator('.panel').innerText(), await page.locator('#future').innerText()]
    await page.locator('#step-title').hover()
    await cell(page, 6, 4).press('Escape')
    const before = await shown()
    await page.reload()
    expect(await shown()).toEqual(before)
    await page.getByRole('button', { name: 'Reset' }).click()
    await expect(page).toHaveURL(/\/$/)
    await page.goBack()
    expect(page.url()).toBe('about:blank')
  })

  test('links within the page move the focus and leave the state alone', async ({ page }) => {
    await page.goto('/#step=scale')
    await page.getByRole('link', { name: 'The future' }).click()
    await expect(page.locator('#future')).toBeFocused()
    await expect(page.locator('#step-title')).toHaveText('4. Scale')
    expect(page.url()).toMatch(/#step=scale$/)
  })

  test('more than 200 hostile addresses give a working page', async ({ page }) => {
    const keys = ['step', 'head', 'heads', 'part', 'cell', 'mask', 'digits', 'colour', 'p', 'edit', '__proto__', 'text', 'layer', 'mhead', 'token', 'swap', 'temp', 'k', 'topp', 'seed', 'cache']
    const values = ['NaN', '-1', '1e99', '%E0%A4%A', '<img src=x>', 'x'.repeat(10_000), '', 'null', '9,9', 'set:1:Infinity', 'nudge:--1', '0', '[]', '1:-1', '9999', '%00%F0%9F%A6%8A', 'both']
    await page.goto('/')
    let tried = 0
    for (const key of keys) {
      for (const value of values) {
        for (const more of ['', '&step=output&cell=7,15']) {
          await page.evaluate((hash) => { location.hash = hash }, `${key}=${value}${more}`)
          tried++
        }
      }
      await expect(page.locator('#panel-difference')).toHaveClass('good')
    }
    expect(tried).toBeGreaterThan(700)
    await page.goto(`/#edit=nudge:1e9&p=6&step=${'z'.repeat(10_000)}`)
    await page.reload()
    await expect(page.locator('#future .verdict-line')).toContainText('exactly 0')
  })
})

test.describe('sizes', () => {
  for (const width of [320, 360, 768, 1280]) {
    test(`${width} px: no sideways scroll of the page, targets of at least 24 px`, async ({ page }) => {
      await page.setViewportSize({ width, height: 740 })
      for (const step of STEPS) {
        await page.goto(`/#step=${step}&edit=set:3:2`)
        await page.reload()
        await expect(page.locator('#step-title')).toBeVisible()
        expect(await page.evaluate(() => document.documentElement.scrollWidth)).toBeLessThanOrEqual(width)
        const small = await page.evaluate(() => [...document.querySelectorAll('button, select, summary, .segments label, input:not([type=radio]), td[role=gridcell], nav a')]
          .map((element) => [element.outerHTML.slice(0, 60), element.getBoundingClientRect()] as const)
          .filter(([, box]) => box.width > 0 && (box.width < 24 || box.height < 24)).map(([html]) => html))
        expect(small).toEqual([])
      }
    })
  }
})

test.describe('accessibility', () => {
  for (const colorScheme of ['light', 'dark'] as const) {
    for (const width of [360, 1280]) {
      test(`axe finds nothing: ${colorScheme}, ${width} px, every step, a pinned cell, a leak`, async ({ page }) => {
        await page.setViewportSize({ width, height: 900 })
        await page.emulateMedia({ colorScheme, reducedMotion: 'reduce' })
        for (const [n, step] of STEPS.entries()) {
          await page.goto(`/#step=${step}&mask=${n % 2 ? 'none' : 'causal'}`)
          await page.reload()
          await cell(page, 4, 4).click()
          for (const summary of await page.locator('summary').all()) await summary.click()
          await page.evaluate(axe)
          const found = await page.evaluate(async () => {
            const { axe } = window as unknown as { axe: { run: (o: object) => Promise<{ violations: { id: string; nodes: { html: string; failureSummary: string }[] }[] }> } }
            const { violations } = await axe.run({ runOnly: ['wcag2a', 'wcag2aa', 'wcag21aa', 'wcag22aa', 'best-practice'] })
            return violations.map(({ id, nodes }) => `${id}: ${nodes[0]?.html.slice(0, 120)} ${nodes[0]?.failureSummary.slice(0, 300)}`)
          })
          expect(found, step).toEqual([])
        }
      })
    }
  }

  test('the help opens, is named, and closes with Esc', async ({ page }) => {
    await page.goto('/')
    await page.getByRole('button', { name: 'Keys of this page' }).click()
    await expect(page.getByRole('dialog', { name: 'Keys' })).toBeVisible()
    await page.keyboard.press('Escape')
    await expect(page.getByRole('dialog')).toHaveCount(0)
    await expect(page.getByRole('button', { name: 'Keys of this page' })).toBeFocused()
  })

  test('forced colours keep the chosen cell, the masked cells and the checked options apart', async ({ page }) => {
    await page.emulateMedia({ forcedColors: 'active' })
    await page.goto('/#step=softmax')
    const style = await cell(page, 5, 2).evaluate((element) => getComputedStyle(element).outlineStyle)
    expect(style).toBe('solid')
    await expect(cell(page, 2, 5)).toContainText('masked, t5 is after t2')
    expect(await cell(page, 2, 5).evaluate((element) => getComputedStyle(element).borderTopStyle)).toBe('dotted')
    expect(await cell(page, 5, 1).evaluate((element) => getComputedStyle(element).borderTopStyle)).toBe('solid')
  })

  test('reduced motion: nothing moves by itself', async ({ page }) => {
    await page.emulateMedia({ reducedMotion: 'reduce' })
    await page.goto('/')
    const moving = await page.evaluate(() => [...document.querySelectorAll('*')].filter((element) => {
      const style = getComputedStyle(element)
      return style.animationName !== 'none' || style.transitionDuration !== '0s' || style.scrollBehavior === 'smooth'
    }).length)
    expect(moving).toBe(0)
  })
})

test('the theme follows the system, can be chosen, and is kept', async ({ page }) => {
  await page.emulateMedia({ colorScheme: 'dark' })
  await page.goto('/#step=scores')
  const paper = (): Promise<string> => page.evaluate(() => getComputedStyle(document.body).backgroundColor)
  const dark = await paper()
  const cellDark = await cell(page, 0, 0).evaluate((element) => getComputedStyle(element).backgroundColor)
  await page.getByLabel('Theme').selectOption('light')
  expect(await paper()).not.toBe(dark)
  expect(await cell(page, 0, 0).evaluate((element) => getComputedStyle(element).backgroundColor)).not.toBe(cellDark)
  await page.reload()
  expect(await paper()).not.toBe(dark)
  expect(page.url()).not.toContain('theme')
})

test.describe('places', () => {
  test('opens from a file', async ({ page }) => {
    await page.goto(`${pathToFileURL(join(dist, 'index.html')).href}#step=softmax&head=2`)
    await expect(page.locator('#badge')).toHaveClass('badge good')
    await cell(page, 7, 7).click()
    await expect(page.locator('#panel-difference')).toHaveClass('good')
  })

  test('works from a subfolder, in at most three requests', async ({ page, problems }) => {
    const root = mkdtempSync(join(tmpdir(), 'octlm-'))
    cpSync(dist, join(root, 'a b', 'page'), { recursive: true })
    const types: Record<string, string> = { '.html': 'text/html', '.css': 'text/css', '.js': 'text/javascript' }
    const asked: string[] = []
    const server = createServer((request, response) => {
      const path = decodeURIComponent((request.url ?? '').split('?')[0] ?? '')
      asked.push(path)
      try {
        const body = readFileSync(join(root, path.endsWith('/') ? `${path}index.html` : path))
        response.writeHead(200, { 'content-type': types[extname(path)] ?? 'text/html' }).end(body)
      } catch {
        response.writeHead(404).end()
      }
    }).listen(0)
    const { port } = server.address() as AddressInfo
    await page.goto(`http://localhost:${port}/a%20b/page/`)
    await expect(page.locator('#badge')).toHaveClass('badge good')
    expect(asked.sort()).toEqual(['/a b/page/', '/a b/page/page.css', '/a b/page/page.js'])
    expect(problems.every((problem) => problem.startsWith(`request: http://localhost:${port}/`))).toBe(true)
    problems.length = 0 // this origin is not the usual one
    server.close()
  })
})

test.describe('the sign at the top', () => {
  const script = readFileSync(join(dist, 'page.js'), 'utf8')
  const base64 = readFileSync(join(dist, 'data/attention.safetensors')).toString('base64')

  /** Serve the page with changed tensors; `signed` also corrects the sha256. */
  function changed(signed: boolean): string {
    expect(script.split(base64)).toHaveLength(2)
    const bytes = Buffer.from(base64, 'base64')
    const header = Number(bytes.readBigUInt64LE(0))
    const { 'q_proj.weight': weight } = JSON.parse(bytes.subarray(8, 8 + header).toString()) as Record<string, { data_offsets: [number, number] }>
    const place = 8 + header + weight!.data_offsets[0]
    const before = createHash('sha256').update(bytes).digest('hex')
    bytes.writeFloatLE(bytes.readFloatLE(place) + 0.01, place)
    const text = script.replace(base64, bytes.toString('base64'))
    return signed ? text.replace(before, createHash('sha256').update(bytes).digest('hex')) : text
  }

  test('is green, with the figure', async ({ page }) => {
    await page.goto('/')
    await expect(page.locator('#badge')).toHaveText(/^✓ within \d\.\de−[789] of PyTorch$/)
    await expect(page.locator('#checks-body td.good')).toHaveCount(20)
    for (const line of await page.locator('[data-provenance]').all()) await expect(line).toContainText(/sha256 [0-9a-f]{12}….*PyTorch 2\.\d+\.\d+, seed 0/)
  })

  test('turns red when one weight is off by 0.01', async ({ page }) => {
    await page.route('**/page.js', (route) => route.fulfill({ body: changed(true), contentType: 'text/javascript' }))
    await page.goto('/')
    await expect(page.locator('#badge')).toHaveClass('badge bad')
    await expect(page.locator('#badge')).toContainText('✗')
    await expect(page.locator('#checks-verdict')).toContainText('do not agree')
  })

  test('says that the data was changed when its sha256 is another', async ({ page }) => {
    await page.route('**/page.js', (route) => route.fulfill({ body: changed(false), contentType: 'text/javascript' }))
    await page.goto('/')
    await expect(page.locator('#badge')).toHaveText('✗ not checked')
    await expect(page.locator('#walk-body')).toContainText('the data was changed')
  })
})

test('without JavaScript the text is there, and the formula', async ({ browser, baseURL }) => {
  const context = await browser.newContext({ javaScriptEnabled: false })
  const page = await context.newPage()
  await page.goto(`${baseURL}/`)
  await expect(page.getByText('softmax(q kᵀ / √D + mask) v')).toBeVisible()
  await expect(page.getByRole('heading', { name: 'What this layer does not do' })).toBeVisible()
  await context.close()
})

test.describe('other eyes', () => {
  test('without red and green the sign is still there: as text in every cell below zero', async ({ page }) => {
    const session = await page.context().newCDPSession(page)
    await session.send('Emulation.setEmulatedVisionDeficiency', { type: 'deuteranopia' })
    await page.goto('/#step=scores&digits=9')
    const cells = page.locator('.result td[role=gridcell]')
    await expect(cells).toHaveCount(64)
    let below = 0
    for (const [i, text] of (await cells.allInnerTexts()).entries()) {
      await cells.nth(i).focus()
      const value = await page.locator('#panel-result').innerText()
      expect(text.startsWith('\u2212') || text === '~0', `${text} is ${value}`).toBe(value.startsWith('\u2212') || text === '~0')
      if (value.startsWith('\u2212')) below++
    }
    expect(below).toBeGreaterThan(10)
    await session.detach()
  })

  test('on paper the tables of a step are dark on white, whole, and without controls', async ({ page }) => {
    await page.setViewportSize({ width: 720, height: 1000 })
    await page.emulateMedia({ colorScheme: 'dark', media: 'print' })
    await page.goto('/#step=softmax')
    const style = (selector: string): Promise<string[]> => page.locator(selector).first().evaluate((element) => {
      const { color, backgroundColor, backgroundImage } = getComputedStyle(element)
      return [color, backgroundColor, backgroundImage]
    })
    for (const selector of ['.result td[role=gridcell]', '.result td.masked', '.source td']) {
      expect(await style(selector), selector).toEqual(['rgb(0, 0, 0)', 'rgba(0, 0, 0, 0)', 'none'])
    }
    await expect(page.locator('.top, .controls, .steps').first()).toBeHidden()
    await expect(page.locator('.panel')).toBeVisible()
    expect(await page.evaluate(() => document.documentElement.scrollWidth)).toBeLessThanOrEqual(720)
  })
})
