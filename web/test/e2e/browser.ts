/** A page that fails its test on any console message, error, or request that leaves the origin. */
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
