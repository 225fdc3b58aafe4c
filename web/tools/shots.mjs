/** Photograph the page for a person to look at: node tools/shots.mjs FOLDER [PARTS], parts as `walk,square,forced`. */
import { mkdirSync } from 'node:fs'
import { chromium } from '@playwright/test'
import { preview } from 'vite'

const folder = process.argv[2] ?? 'screenshots'
const parts = process.argv[3]?.split(',')
const wanted = (part) => parts === undefined || parts.includes(part)
mkdirSync(folder, { recursive: true })
const server = await preview({ preview: { port: Number(process.env['PORT'] ?? 4179) }, logLevel: 'error' })
const root = server.resolvedUrls.local[0]
const browser = await chromium.launch({
  executablePath: process.env['CHROMIUM'] ?? '/usr/bin/chromium', args: ['--no-sandbox', '--disable-gpu'],
})
const steps = ['input', 'qkv', 'scores', 'mask', 'softmax', 'values', 'concat', 'output']

/** A fresh page at an address of ours. */
async function open(page, hash) {
  await page.goto(`${root}#${hash}`)
  await page.reload()
}

/** One section, with what it loads when the reader comes near. */
async function section(page, id, path) {
  const place = page.locator(`#${id}`)
  await place.scrollIntoViewIfNeeded()
  await page.waitForLoadState('networkidle')
  await page.waitForTimeout(300)
  await page.evaluate(() => document.querySelectorAll('.panel, .top').forEach((part) => { part.style.position = 'static' })) // they cover what lies below
  await place.screenshot({ path })
}

for (const colorScheme of /** @type {const} */ (['light', 'dark'])) {
  for (const width of [360, 1280]) {
    const page = await browser.newPage({ colorScheme, viewport: { width, height: width < 900 ? 740 : 900 } })
    const name = `${width}-${colorScheme}`
    if (wanted('page')) {
      await open(page, 'step=softmax&head=2')
      await page.evaluate(() => document.querySelectorAll('.panel').forEach((panel) => { panel.style.position = 'static'; panel.style.maxHeight = 'none' }))
      await page.screenshot({ path: `${folder}/page-${name}.png`, fullPage: true })
    }
    for (const step of wanted('walk') ? steps : []) {
      await open(page, `step=${step}&head=2${step === 'mask' ? '&cell=3,5' : ''}`)
      await page.evaluate(() => document.querySelector('#walk')?.scrollIntoView({ behavior: 'instant' }))
      await page.screenshot({ path: `${folder}/${step}-${name}.png` })
    }
    if (wanted('both')) {
      await open(page, 'step=qkv&heads=both')
      await section(page, 'walk', `${folder}/both-${name}.png`)
      await open(page, 'step=softmax&colour=row&digits=2')
      await section(page, 'walk', `${folder}/rows-${name}.png`)
    }
    for (const id of ['future', 'model', 'square', 'runs']) {
      if (!wanted(id)) continue
      await open(page, id === 'future' ? 'mask=none&p=4' : '')
      await section(page, id, `${folder}/${id}-${name}.png`)
    }
    await page.close()
  }
}

/** What some readers see: their own colours, no difference between red and green, paper. */
const page = await browser.newPage({ viewport: { width: 1280, height: 900 } })
const sections = ['walk', 'future', 'model', 'square', 'runs']
for (const colorScheme of wanted('forced') ? /** @type {const} */ (['light', 'dark']) : []) {
  await page.emulateMedia({ forcedColors: 'active', colorScheme })
  for (const id of sections) {
    await open(page, 'step=softmax&cell=6,2')
    await section(page, id, `${folder}/forced-${id}-${colorScheme}.png`)
  }
}
await page.emulateMedia({ forcedColors: 'none', colorScheme: 'light' })
if (wanted('deuteranopia')) {
  const session = await page.context().newCDPSession(page)
  await session.send('Emulation.setEmulatedVisionDeficiency', { type: 'deuteranopia' })
  for (const id of sections) {
    await open(page, 'step=scores')
    await section(page, id, `${folder}/deuteranopia-${id}.png`)
  }
  await session.send('Emulation.setEmulatedVisionDeficiency', { type: 'none' })
}
if (wanted('print')) {
  const paper = await browser.newPage({ viewport: { width: 720, height: 1000 }, colorScheme: 'dark' }) // A4 inside its margins
  await paper.goto(`${root}#step=softmax`)
  await paper.emulateMedia({ media: 'print' })
  await paper.screenshot({ path: `${folder}/print.png`, fullPage: true })
  await paper.pdf({ path: `${folder}/print.pdf`, format: 'A4' })
}
await browser.close()
await server.close()
