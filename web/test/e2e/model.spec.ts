import { readFileSync } from 'node:fs'
import { fileURLToPath, pathToFileURL } from 'node:url'
import type { Page } from '@playwright/test'
import { openModel } from '../../src/io/load'
import { read } from '../unit/fixtures'
import { axeFinds, expect, near, open, test } from './browser'

const at = (path: string): string => fileURLToPath(new URL(`../../${path}`, import.meta.url))
const file = readFileSync(at('public/data/model.safetensors'))
const { tokenizer, model } = openModel(new Uint8Array(file))
const reference = read('test/fixtures/model-reference.safetensors')
const prompts = reference.about['prompts'] as string[]
const settings = reference.about['settings'] as { temperature: number; top_k: number; top_p: number; seed: number }
const WEIGHTS = '**/model.safetensors'

/** Let the model write to its end, or to the end of so many tokens, as fast as the buttons allow. */
async function writeOn(page: Page, tokens: number): Promise<void> {
  for (let n = 1; n <= tokens; n++) {
    await page.locator('#write-one').click()
    await expect(page.locator('#model-output mark')).toHaveAttribute('data-tokens', String(n))
    if (await page.locator('#write-one').isDisabled()) return
  }
}

const written = (page: Page): Promise<string | null> => page.locator('#model-output mark').textContent()
const computed = async (page: Page): Promise<number> => Number((await page.locator('#cache-computed').textContent())!.replaceAll(',', ''))

/** The text of a list of ids, which may end at the end of a text. */
const textOf = (ids: readonly number[]): string => tokenizer.decode(ids)
const upTo = (ids: readonly number[]): number[] => {
  const end = ids.indexOf(tokenizer.eot)
  return end < 0 ? [...ids] : ids.slice(0, end + 1)
}

test('the model is asked for when the reader comes near, not before; until then PyTorch’s example is there', async ({ page }) => {
  const asked: string[] = []
  page.on('request', (request) => asked.push(new URL(request.url()).pathname))
  await page.goto('/')
  await expect(page.locator('#badge')).toHaveClass('badge good')
  await page.waitForTimeout(300)
  expect(asked).toHaveLength(3)
  await expect(page.locator('#model-status')).toContainText('1.7 MB')
  await expect(page.locator('.next')).toContainText('Precomputed by PyTorch')
  expect(await page.locator('.chips label').count()).toBeGreaterThan(5)
  expect(await page.locator('.heads canvas').count()).toBe(16)
  await near(page)
  await expect(page.locator('#model-status')).toContainText(`The model is here: ${model.parameters.toLocaleString('en')} parameters`)
  expect(asked.filter((path) => path.endsWith('model.safetensors'))).toHaveLength(1)
  await expect(page.locator('#model-provenance')).toContainText(/sha256 [0-9a-f]{12}….*run page, step [\d,]+, trained on fables with PyTorch 2\./)
})

test.describe('as PyTorch', () => {
  const hashOf = (n: number, more: string): string => `text=${encodeURIComponent(prompts[n]!)}&${more}`
  for (const n of [0, 1, 2]) {
    test(`prompt ${n}: the likeliest tokens, and the tokens of a seed, are those of generate.py`, async ({ page }) => {
      test.slow()
      await open(page, hashOf(n, 'temp=0'))
      const greedy = upTo(reference.ids(`p${n}.greedy`))
      await writeOn(page, greedy.length)
      expect(await written(page)).toBe(textOf(greedy))
      const { temperature, top_k: k, top_p: p, seed } = settings
      await page.goto('about:blank')
      await open(page, hashOf(n, `temp=${temperature}&k=${k}&topp=${p}&seed=${seed}`))
      const sampled = upTo(reference.ids(`p${n}.sampled`))
      await writeOn(page, sampled.length)
      expect(await written(page)).toBe(textOf(sampled))
    })
  }

  test('the next-token list is the softmax of the last row over the whole vocabulary', async ({ page }) => {
    await open(page, hashOf(1, ''))
    const logits = reference.get('p1.logits')
    const row = [...logits.data.slice(-model.config.vocab_size)]
    const total = row.reduce((sum, value) => sum + Math.exp(value), 0)
    const best = row.indexOf(Math.max(...row))
    await expect(page.locator('.next tbody tr').first().locator('th')).toHaveText(tokenizer.piece(best))
    await expect(page.locator('.next tbody tr').first().locator('td').first()).toHaveText(`${(100 * Math.exp(row[best]!) / total).toFixed(1)} %`)
    await expect(page.locator('.next .quiet')).toContainText('all 1,024 tokens')
  })
})

test('cut tokens stay on the list, struck through, with the reason', async ({ page }) => {
  await open(page, 'k=3')
  const rows = page.locator('.next tbody tr')
  await expect(rows).toHaveCount(20)
  await expect(rows.nth(2)).not.toHaveClass('cut')
  for (const i of [3, 19]) {
    await expect(rows.nth(i)).toHaveClass('cut')
    await expect(rows.nth(i).locator('s')).toHaveCount(1)
    await expect(rows.nth(i)).toContainText('cut by top-k')
  }
  await page.locator('#temperature').fill('0')
  await expect(rows.nth(1)).toContainText('cut: not the likeliest')
  await page.locator('#temperature').fill('1')
  await page.locator('#top-k').fill('0')
  await page.locator('#top-k').press('Enter')
  await page.locator('#top-p').fill('0.3')
  await expect(rows.nth(19)).toContainText('cut by top-p')
})

test('the cache: the same text without it, T rows computed with it and T (T + 1) / 2 without', async ({ page }) => {
  const n = 12
  await open(page, 'seed=3')
  const start = await page.locator('.chips label').count()
  await writeOn(page, n)
  const text = await written(page)
  expect(await computed(page)).toBe(start + n)
  await expect(page.locator('#cache-last')).toHaveText(`1 row computed, ${start + n - 1} reused`)
  const { n_layers: L, n_kv_heads: K, head_dim: D } = model.config
  await expect(page.locator('#cache-bytes')).toContainText(` = ${(2 * L * K * D * (start + n) * 4).toLocaleString('en')}`)
  await page.locator('#write-back').click()
  await expect(page.locator('#model-output mark')).toHaveText('')
  await page.locator('label[for=cache-off]').click()
  await writeOn(page, n)
  expect(await written(page)).toBe(text)
  let rows = start
  for (let t = start + 1; t <= start + n; t++) rows += t
  expect(await computed(page)).toBe(rows)
  await expect(page.locator('#cache-last')).toHaveText(`all ${start + n} rows computed`)

  await page.locator('#model-text').fill('One') // one token: from the first on
  await expect(page.locator('.chips label')).toHaveCount(1)
  await writeOn(page, 9)
  expect(await computed(page)).toBe((10 * 11) / 2)
})

test('a token that is swapped moves nothing before it, in no layer, and everything can move after it', async ({ page }) => {
  await open(page)
  const T = await page.locator('.chips label').count()
  for (const t of [1, 4, T - 1]) {
    await page.locator('#swap-at').selectOption(String(t))
    await expect(page.locator('.swap tbody tr.edited')).toContainText(`t${t} `)
    await expect(page.locator('#swap-verdict')).toContainText('exactly 0')
    const rows = await page.locator('.swap tbody tr').evaluateAll((all) => all.map((row) => [...row.querySelectorAll('td')].map((cell) => cell.textContent ?? '')))
    expect(rows).toHaveLength(T)
    for (const [i, values] of rows.entries()) {
      expect(values).toHaveLength(model.config.n_layers + 1)
      if (i < t) expect(values).toEqual(values.map(() => '0'))
      else expect(values.at(-1)).not.toBe('0')
    }
  }
  await page.locator('#swap-at').selectOption('0')
  await expect(page.locator('#swap-verdict')).toContainText('no earlier tokens')
  await page.locator('#swap-at').selectOption('-1')
  await expect(page.locator('#swap-verdict')).toBeHidden()
})

test('the table of a reader has the largest shares, and the pictures choose it, too', async ({ page }) => {
  await open(page, 'layer=2&mhead=3&token=5')
  await expect(page.locator('#reads-title')).toContainText('t5')
  await expect(page.locator('#reads-title')).toContainText('layer 2, head 3')
  await expect(page.locator('#head-1-2')).toBeChecked()
  const shares = await page.locator('.reads tbody td:nth-of-type(1)').allTextContents()
  const numbers = shares.map((text) => Number(/[\d.]+/.exec(text)![0]))
  expect(numbers).toEqual([...numbers].sort((a, b) => b - a))
  expect(numbers.length).toBe(6)
  await page.locator('label[for=token-2]').click()
  await expect(page.locator('#reads-title')).toContainText('t2')
  await page.locator('label[for=head-3-0]').click()
  await expect(page.locator('#reads-title')).toContainText('layer 4, head 1')
  const box = (await page.locator('.one .triangle').boundingBox())!
  await page.mouse.click(box.x + 5, box.y + box.height - 3)
  const T = await page.locator('.chips label').count()
  await expect(page.locator('#reads-title')).toContainText(`t${T - 1} `)
  await expect(page).toHaveURL(new RegExp(`layer=4&mhead=1&token=${T - 1}$`))
  const painted = await page.locator('.one .triangle').evaluate((canvas: HTMLCanvasElement) =>
    new Set(canvas.getContext('2d')!.getImageData(0, 0, canvas.width, canvas.height).data).size)
  expect(painted).toBeGreaterThan(8) // not blank
})

test('a number that is being typed stays while something else changes', async ({ page }) => {
  await open(page)
  await page.locator('#seed').fill('12')
  await page.locator('#temperature').evaluate((slider: HTMLInputElement) => { // a change elsewhere, with the focus left where it is
    slider.value = '1.5'
    slider.dispatchEvent(new Event('input'))
  })
  await expect(page).toHaveURL(/temp=1.5/)
  await expect(page.locator('#seed')).toHaveValue('12')
  await page.locator('#seed').press('Enter')
  await expect(page).toHaveURL(/seed=12/)
})

test('the address holds the text and the settings over a reload', async ({ page }) => {
  await open(page)
  await page.locator('#model-text').fill('Zwei Otter & 你好 #1')
  await page.locator('#temperature').fill('1.5')
  await page.locator('#seed').fill('12')
  await page.locator('#seed').press('Enter')
  await page.locator('label[for=cache-off]').click()
  await page.locator('label[for=token-1]').click()
  await expect(page).toHaveURL(/text=Zwei%20Otter%20%26%20%E4%BD%A0%E5%A5%BD%20%231&token=1&temp=1.5&seed=12&cache=off$/)
  await page.reload()
  await near(page)
  await expect(page.locator('#model-text')).toHaveValue('Zwei Otter & 你好 #1')
  await expect(page.locator('#cache-off')).toBeChecked()
  await expect(page.locator('#seed')).toHaveValue('12')
  await expect(page.locator('#reads-title')).toContainText('t1')
})

test.describe('texts that cannot be', () => {
  test('empty, too long, half a character: words, and the last good one stays', async ({ page }) => {
    await open(page)
    const before = await page.locator('.chips label').allTextContents()
    await page.locator('#model-text').fill('')
    await expect(page.locator('#model-problem')).toContainText('one token at least')
    await expect(page.locator('#model-text')).toHaveAttribute('aria-invalid', 'true')
    expect(await page.locator('.chips label').allTextContents()).toEqual(before)
    await page.locator('#model-text').fill('🦦'.repeat(100))
    await expect(page.locator('#model-problem')).toContainText('the model is given the first 64')
    await expect(page.locator('.chips label')).toHaveCount(64)
    expect((await page.locator('#model-text').inputValue()).length).toBeLessThanOrEqual(200)
    await page.locator('#model-text').evaluate((box: HTMLTextAreaElement) => {
      box.value = 'a\ud83e'
      box.dispatchEvent(new Event('input'))
    })
    await expect(page.locator('#model-problem')).toContainText('half a character')
    await page.locator('#model-text').fill('One')
    await expect(page.locator('#model-problem')).toHaveText('')
  })

  test('the text ends at the end of a story, or where the context is full', async ({ page }) => {
    test.slow()
    await open(page, 'temp=0&text=Moral%3A')
    await page.locator('#write-on').click()
    await expect(page.locator('#written-status')).toContainText(/ended its text|context is full/, { timeout: 60_000 })
    await expect(page.locator('#write-one')).toBeDisabled()
    await page.locator('#write-back').click()
    await expect(page.locator('#write-one')).toBeEnabled()
    await page.locator('#model-text').fill('One') // a whole story is to come
    await page.locator('#write-on').click()
    await page.locator('#write-on').click() // Stop
    await expect(page.locator('#write-on')).toHaveText('Write on')
  })
})

test.describe('when the file does not come', () => {
  const changed = Buffer.from(file)
  changed[changed.length - 9]! ^= 1
  for (const [name, answer, words] of [
    ['it is missing', { status: 404, body: '' }, 'the file is not there'],
    ['it is cut', { body: file.subarray(0, 500_000) }, 'ended after 500,000 of'],
    ['a byte is another', { body: changed }, 'sha256 is another'],
    ['the connection fails', null, 'could not be fetched'],
  ] as const) {
    test(`${name}: a sentence, and another try`, async ({ page, problems }) => {
      await page.route(WEIGHTS, (route) => (answer ? route.fulfill(answer) : route.abort()))
      await page.goto('/')
      await near(page)
      await expect(page.locator('#model-status')).toContainText(words)
      await page.unroute(WEIGHTS)
      problems.length = 0 // the browser tells the console of a failed request
      await page.getByRole('button', { name: 'Try again' }).click()
      await expect(page.locator('#model-status')).toContainText('The model is here')
    })
  }

  test('the reader may cancel, and try again', async ({ page }) => {
    let go = (): void => undefined
    const gate = new Promise<void>((resolve) => { go = resolve })
    await page.route(WEIGHTS, async (route) => {
      await gate
      await route.continue().catch(() => undefined)
    })
    await page.goto('/')
    await near(page)
    await expect(page.getByRole('progressbar')).toBeVisible()
    await page.getByRole('button', { name: 'Cancel' }).click()
    await expect(page.locator('#model-status')).toHaveText('Loading was cancelled.')
    go()
    await page.unroute(WEIGHTS)
    await page.getByRole('button', { name: 'Try again' }).click()
    await expect(page.locator('#model-status')).toContainText('The model is here')
  })

  test('opened from a file, the page says why, and opens the model that the reader chooses', async ({ page }) => {
    await page.goto(pathToFileURL(at('dist/index.html')).href)
    await near(page)
    await expect(page.locator('#model-status')).toContainText('opened from a file')
    const input = page.locator('#model-file')
    const put = (name: string, buffer: Buffer): Promise<void> => input.setInputFiles({ name, mimeType: 'application/octet-stream', buffer })
    await put('photo.png', Buffer.from([0x89, 0x50, 0x4e, 0x47, 13, 10, 26, 10, 0]))
    await expect(page.locator('#model-status')).toContainText('photo.png could not be opened')
    await put('old.safetensors', Buffer.from(file.toString('latin1').replace('octlm-web-model/1', 'octlm-web-model/0'), 'latin1'))
    await expect(page.locator('#model-status')).toContainText('schema octlm-web-model/0: this page reads octlm-web-model/1')
    await put('bf16.safetensors', Buffer.from(file.toString('latin1').replace('"dtype":"F16"', '"dtype":"B16"'), 'latin1'))
    await expect(page.locator('#model-status')).toContainText('this reader takes F32, F16, I32')
    await put('model.safetensors', file)
    await expect(page.locator('#model-status')).toContainText('The model is here')
    await writeOn(page, 2)
  })
})

test('by keyboard alone: choose a head and a token, swap one, write five', async ({ page }) => {
  await open(page)
  await page.locator('#model-text').focus()
  const focused = async (): Promise<string> => page.locator(':focus').evaluate((element) => element.id)
  await page.keyboard.press('Tab')
  expect(await focused()).toMatch(/^token-/)
  await page.keyboard.press('ArrowLeft')
  const T = await page.locator('.chips label').count()
  await expect(page.locator('#reads-title')).toContainText(`t${T - 2} `)
  await page.keyboard.press('Tab')
  expect(await focused()).toBe('head-0-2')
  await page.keyboard.press('ArrowRight')
  await expect(page.locator('#reads-title')).toContainText('layer 1, head 4')
  for (let i = 0; i < 6 && (await focused()) !== 'write-one'; i++) await page.keyboard.press('Tab')
  expect(await focused()).toBe('write-one')
  for (let n = 1; n <= 5; n++) {
    await page.keyboard.press('Enter')
    await expect(page.locator('#model-output mark')).toHaveAttribute('data-tokens', String(n))
    expect(await focused()).toBe('write-one')
  }
  for (let i = 0; i < 12 && (await focused()) !== 'swap-at'; i++) await page.keyboard.press('Tab')
  expect(await focused()).toBe('swap-at')
  await page.keyboard.press('ArrowDown')
  await page.keyboard.press('ArrowDown')
  await expect(page.locator('#swap-verdict')).toContainText('exactly 0')
})

for (const width of [320, 1280]) {
  for (const colorScheme of ['light', 'dark'] as const) {
    test(`${width} px, ${colorScheme}: axe finds nothing, no sideways scroll, targets of 24 px`, async ({ page }) => {
      await page.setViewportSize({ width, height: 800 })
      await page.emulateMedia({ colorScheme, reducedMotion: 'reduce' })
      await open(page, 'k=5&swap=3:300&layer=2')
      await writeOn(page, 3)
      await page.locator('.own summary').click()
      await expect(page.locator('#swap-verdict')).toBeVisible()
      expect(await page.evaluate(() => document.documentElement.scrollWidth)).toBeLessThanOrEqual(width)
      const small = await page.evaluate(() => [...document.querySelectorAll('#model button, #model select, #model summary, #model label:not(.field label, .write label, .edit label), #model input:not([type=radio])')]
        .map((element) => [element.outerHTML.slice(0, 80), element.getBoundingClientRect()] as const)
        .filter(([, box]) => box.width > 0 && (box.width < 24 || box.height < 24)).map(([html]) => html))
      expect(small).toEqual([])
      expect(await axeFinds(page)).toEqual([])
    })
  }
}
