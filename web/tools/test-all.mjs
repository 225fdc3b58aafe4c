/** Types, unit tests, build with its budget, browser tests; the last line counts them. Exit 1 when anything failed. */
import { spawnSync } from 'node:child_process'
import { mkdtempSync, readFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'

const folder = mkdtempSync(join(tmpdir(), 'octlm-web-'))
let passed = 0
let failed = 0

/** Run a command; one that counts nothing counts as one failure when it fails. */
function run(command, environment, count) {
  const { status } = spawnSync('npx', command, { stdio: 'inherit', env: { ...process.env, ...environment } })
  let counted = [0, 0]
  try {
    counted = count?.() ?? counted
  } catch {
    counted = [0, 0] // it ended before it could write its report; its status tells
  }
  passed += counted[0]
  failed += status === 0 ? counted[1] : Math.max(1, counted[1])
  return status === 0
}

const json = (name) => JSON.parse(readFileSync(join(folder, name), 'utf8'))
run(['tsc', '--noEmit'])
run(['vitest', 'run', '--coverage', '--reporter=default', '--reporter=json', `--outputFile.json=${join(folder, 'unit.json')}`], {}, () => {
  const { numPassedTests, numFailedTests } = json('unit.json')
  return [numPassedTests, numFailedTests]
})
if (run(['vite', 'build']) && run(['node', 'tools/budget.mjs'])) {
  run(['playwright', 'test', '--reporter=list,json'], { PLAYWRIGHT_JSON_OUTPUT_NAME: join(folder, 'browser.json') }, () => {
    const { expected, unexpected, flaky } = json('browser.json').stats
    return [expected, unexpected + flaky]
  })
}
console.log(`web: ${passed} passed, ${failed} failed`)
process.exit(failed > 0 ? 1 : 0)
