import { execFileSync } from 'node:child_process'
import { existsSync, readFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import type { Plugin } from 'vite'
import { defineConfig } from 'vitest/config'
import { readSafetensors } from './src/io/safetensors.ts'
import { at, size } from './src/math/tensor.ts'
import { inCell, position } from './src/ui/format.ts'
import { mutate } from './test/unit/mutants.ts'

const data = (name: string): string => fileURLToPath(new URL(`./public/data/${name}`, import.meta.url))

/** Exported data as modules, so that all but the trained model needs no request and opens from a file, too. */
const MODULES: Readonly<Record<string, { files: readonly string[]; code: (...contents: readonly Buffer[]) => string }>> = {
  'virtual:attention': {
    files: ['attention.safetensors', 'attention.json'],
    code: (tensors, listing) => `export const base64 = ${JSON.stringify(tensors!.toString('base64'))}
export const manifest = ${listing!.toString()}`,
  },
  'virtual:model': {
    files: ['model.json', 'example.safetensors'],
    code: (listing, example) => `export const listing = ${listing!.toString()}
export const example = ${JSON.stringify(example!.toString('base64'))}`,
  },
  'virtual:memory': {
    files: existsSync(data('memory.json')) ? ['memory.json'] : [], // measured on somebody's machine, or not yet
    code: (memory) => `export const memory = ${memory?.toString() ?? 'null'}`,
  },
}

const inlined: Plugin = {
  name: 'octlm-data',
  resolveId: (id) => (id in MODULES ? `\0${id}` : undefined),
  load(id) {
    const module = MODULES[id.slice(1)]
    if (!id.startsWith('\0') || !module) return undefined
    const paths = module.files.map(data)
    for (const path of paths) this.addWatchFile(path)
    return module.code(...paths.map((path) => readFileSync(path)))
  },
}

/** The layer's output, for those without JavaScript: the one table that the nine steps lead to. */
const finalTable: Plugin = {
  name: 'octlm-final-table',
  transformIndexHtml: (html) => html.replace('<!-- the output -->', () => {
    const output = readSafetensors(readFileSync(data('attention.safetensors'))).tensors.get('causal.output')!
    const { rows, columns } = size(output)
    const row = (tag: string, cells: readonly string[]): string => cells.map((cell) => `<${tag}>${cell}</${tag}>`).join('')
    const numbers = Array.from({ length: rows }, (_, t) => Array.from({ length: columns }, (_, c) => inCell(at(output, 0, t, c))))
    return `<table class="plain"><caption>The output, as PyTorch has it</caption><thead><tr><td></td>${row('th', Object.keys(numbers[0]!))}</tr></thead>
<tbody>${numbers.map((cells, t) => `<tr><th>${position(t)}</th>${row('td', cells)}</tr>`).join('')}</tbody></table>`
  }),
}

/** Browsers refuse module scripts on file://; one deferred classic script works everywhere. */
const classicScript: Plugin = {
  name: 'octlm-classic-script',
  enforce: 'post',
  transformIndexHtml: (html) =>
    html.replace(/<script type="module" crossorigin/g, '<script defer').replace(/ crossorigin(?= href)/g, ''),
}

/** `attention.ts?mutant=no-scale` is attention.ts with one deliberate fault; only the tests ask for them. */
const mutants: Plugin = {
  name: 'octlm-mutants',
  enforce: 'pre',
  transform(code, id) {
    const fault = /\?mutant=([a-z-]+)/.exec(id)?.[1]
    return fault === undefined ? undefined : { code: mutate(code, fault), map: null }
  },
}

function commit(): string {
  try {
    return execFileSync('git', ['rev-parse', '--short=10', 'HEAD'], { encoding: 'utf8', stdio: 'pipe' }).trim()
  } catch {
    return '' // a copy without its history
  }
}

export default defineConfig({
  base: './',
  plugins: [inlined, finalTable, classicScript, mutants],
  define: { __COMMIT__: JSON.stringify(commit()) },
  build: {
    target: ['chrome109', 'firefox115', 'safari16.4'],
    modulePreload: false,
    cssCodeSplit: false, // else an IIFE would carry the styles, and the page would come up naked
    rolldownOptions: { output: { format: 'iife', entryFileNames: 'page.js', assetFileNames: 'page[extname]' } },
  },
  preview: { port: 4173, strictPort: true },
  test: {
    include: ['test/unit/**/*.test.ts'],
    coverage: { provider: 'v8', include: ['src/math/**', 'src/io/**', 'src/state/**'], thresholds: { lines: 95 } },
  },
})
