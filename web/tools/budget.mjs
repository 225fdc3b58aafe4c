/** Fail the build when the first load grows beyond its budget. */
import { readFileSync, readdirSync, statSync } from 'node:fs'
import { gzipSync } from 'node:zlib'

const LIMIT = 70_000 // bytes, gzipped: HTML, CSS and JavaScript with the tensors inside
const FILES = 3

const dist = new URL('../dist/', import.meta.url)
const first = readdirSync(dist).filter((name) => statSync(new URL(name, dist)).isFile())
const sizes = first.map((name) => [name, gzipSync(readFileSync(new URL(name, dist))).length])
const total = sizes.reduce((sum, [, size]) => sum + size, 0)
for (const [name, size] of sizes) console.log(`${String(size).padStart(8)}  ${name}`)
console.log(`${String(total).padStart(8)}  first load, gzipped; at most ${LIMIT}`)
const outside = first.flatMap((name) => readFileSync(new URL(name, dist), 'utf8').match(/\b(?:src|href)="(?:https?:)?\/[^"]*"/g) ?? [])
if (total > LIMIT || first.length > FILES || outside.length > 0) {
  console.error(`budget: ${total} bytes in ${first.length} files, absolute addresses: ${outside.join(' ') || 'none'}`)
  process.exit(1)
}
