/** A page that fails its test on any console message, error, or request that leaves the origin. */
import { readFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import { type Page, test as base, expect } from '@playwright/test'

export { expect }
export const test = base.extend<{ page: Page; problems: string[] }>({
  // oxlint-disable-next-line no-empty-pattern
  problems: async ({}, use) => use([]),
  page: async ({ page, problems, baseURL }, use) => {
    page.on('console', (message) => problems.push(`console: ${message.text()}`))
    page.on('pageerror', (error) => problems.push(`error: ${error.message}`))
    page.on('request', (request) => {
      if (!request.url().startsWith(`${baseURL}/`) && !/^(data|file|blob):/.test(request.url())) problems.push(`request: ${request.url()}`)
    })
    await use(page)
    expect(problems).toEqual([])
  },
})

/** The cell of a result table by its indices. */
export const cell = (page: Page, row: number, column: number, table = 0): ReturnType<Page['locator']> =>
  page.locator('.result table[role=grid]').nth(table).locator('tbody tr').nth(row).locator('td').nth(column)

export const STEPS = ['input', 'qkv', 'scores', 'scale', 'mask', 'softmax', 'values', 'concat', 'output']

const axe = readFileSync(fileURLToPath(new URL('../../node_modules/axe-core/axe.min.js', import.meta.url)), 'utf8')

/** What axe-core has against the page as it stands: a line for each rule that is broken. */
export async function axeFinds(page: Page): Promise<string[]> {
  await page.evaluate(axe)
  return page.evaluate(async () => {
    const { axe } = window as unknown as { axe: { run: (o: object) => Promise<{ violations: { id: string; nodes: { html: string; failureSummary: string }[] }[] }> } }
    const { violations } = await axe.run({ runOnly: ['wcag2a', 'wcag2aa', 'wcag21aa', 'wcag22aa', 'best-practice'] })
    return violations.map(({ id, nodes }) => `${id}: ${nodes[0]?.html.slice(0, 160)} ${nodes[0]?.failureSummary.slice(0, 300)}`)
  })
}

/** Scroll to the trained model, whose file is fetched only then. */
export async function near(page: Page): Promise<void> {
  await page.locator('#model').scrollIntoViewIfNeeded()
}

/** Open the page with the trained model read and its first text worked out. */
export async function open(page: Page, hash = ''): Promise<void> {
  await page.goto(`/${hash ? `#${hash}` : ''}`)
  await near(page)
  await expect(page.locator('#model-status')).toContainText('The model is here')
  await expect(page.locator('#model-output')).not.toBeEmpty()
}
