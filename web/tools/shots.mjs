/** Photograph the page for a person to look at: node tools/shots.mjs FOLDER */
import { mkdirSync } from 'node:fs'
import { chromium } from '@playwright/test'
import { preview } from 'vite'

const folder = process.argv[2] ?? 'screenshots'
mkdirSync(folder, { recursive: true })
const server = await preview({ preview: { port: 4179 }, logLevel: 'error' })
const browser = await chromium.launch({
  executablePath: process.env['CHROMIUM'] ?? '/usr/bin/chromium', args: ['--no-sandbox', '--disable-gpu'],
})
const steps = ['input', 'qkv', 'scores', 'mask', 'softmax', 'values', 'concat', 'output']
for (const colorScheme of /** @type {const} */ (['light', 'dark'])) {
  for (const width of [360, 1280]) {
    const page = await browser.newPage({ colorScheme, viewport: { width, height: width < 900 ? 740 : 900 } })
    const name = `${width}-${colorScheme}`
    await page.goto('http://localhost:4179/#step=softmax&head=2')
    await page.evaluate(() => document.querySelectorAll('.panel').forEach((panel) => { panel.style.position = 'static'; panel.style.maxHeight = 'none' }))
    await page.screenshot({ path: `${folder}/page-${name}.png`, fullPage: true })
    for (const step of steps) {
      await page.goto(`http://localhost:4179/#step=${step}&head=2${step === 'mask' ? '&cell=3,5' : ''}`)
      await page.reload()
      await page.evaluate(() => document.querySelector('#walk')?.scrollIntoView({ behavior: 'instant' }))
      await page.screenshot({ path: `${folder}/${step}-${name}.png` })
    }
    await page.goto('http://localhost:4179/#mask=none&p=4')
    await page.reload()
    await page.locator('#future').screenshot({ path: `${folder}/future-${name}.png` })
    await page.close()
  }
}
await browser.close()
await server.close()
