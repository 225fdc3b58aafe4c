import { execFileSync } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import type { Plugin } from 'vite'
import { defineConfig } from 'vitest/config'
import { mutate } from './test/unit/mutants.ts'

const data = (name: string): string => fileURLToPath(new URL(`./public/data/${name}`, import.meta.url))

/** The exported tensors as a module, so that the walk needs no request and opens from a file, too. */
function fixture(): Plugin {
  const name = 'virtual:attention'
  return {
    name: 'octlm-fixture',
    resolveId: (id) => (id === name ? `\0${name}` : undefined),
    load(id) {
      if (id !== `\0${name}`) return undefined
      const files = [data('attention.safetensors'), data('attention.json')] as const
      for (const file of files) this.addWatchFile(file)
      const manifest: unknown = JSON.parse(readFileSync(files[1], 'utf8'))
      return `export const base64 = ${JSON.stringify(readFileSync(files[0]).toString('base64'))}
export const manifest = ${JSON.stringify(manifest)}`
    },
  }
}

/** Browsers refuse module scripts on file://; one deferred classic script works everywhere. */
const classicScript: Plugin = {
  name: 'octlm-classic-script',
  enforce: 'post',
  transformIndexHtml: (html) =>
    html.replace(/<script type="module" crossorigin/g, '<script defer').replace(/ crossorigin(?= href)/g, ''),
}

/** `attention.ts?mutant=no-scale` is attention.ts with one deliberate fault; only the tests ask for it. */
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
  plugins: [fixture(), classicScript, mutants],
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
