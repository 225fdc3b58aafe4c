import type { Memory } from '../../src/math/memory'

/** Measurements that nobody made, for the tests: uneven numbers, two ways at one length, and a growth of 0. */
export const measured: Memory = {
  schema: 'octlm-web-memory/1', device: 'a test', torch: '2.13.0', commit: '0123456789',
  points: [
    { backend: 'fused', dtype: 'fp32', tokens: 4096, growth_bytes: 4_194_304, seconds: 0.25 },
    { backend: 'math', dtype: 'bf16', tokens: 1024, growth_bytes: 33_554_433, seconds: 0.0625 },
    { backend: 'fused', dtype: 'fp32', tokens: 1000, growth_bytes: 0, seconds: 1e-7 },
    { backend: 'math', dtype: 'fp32', tokens: 1024, growth_bytes: 71_303_168, seconds: 0.125 },
  ],
}
