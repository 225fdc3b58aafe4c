import { base64, manifest } from 'virtual:attention'
import { bytesOf, readFixture } from '../../src/io/fixture'

export const bytes = bytesOf(base64)
export const listing = manifest
export const layer = readFixture(bytes, manifest)
export const heads = layer.manifest.n_heads
export const MASKS = ['causal', 'none'] as const
