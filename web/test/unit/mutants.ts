/** Deliberate faults: each is a replacement in src/math/attention.ts, and parity must find every one. */
export const MUTANTS: Readonly<Record<string, readonly (readonly [string, string])[]>> = {
  'no-scale': [[' / Math.sqrt(D))', ')']],
  'square-root-of-the-whole-width': [[' / Math.sqrt(D))', ' / Math.sqrt(C))']],
  'mask-off-by-one': [['key <= query', 'key <= query + 1']],
  'mask-strict-below-the-diagonal': [['key <= query', 'key < query || query === 0']],
  'zero-for-minus-infinity': [[': -Infinity))', ': 0))']],
  'softmax-over-the-wrong-axis': [
    ['softmaxParts(masked, h, i)', 'softmaxParts(masked, h, j)'],
    ['at(masked, head, row, j)', 'at(masked, head, j, row)'],
  ],
  'interleaved-heads': [['at(weight, 0, h * D + j, c)', 'at(weight, 0, j * H + h, c)']],
  'swapped-heads': [['Math.floor(c / D)', 'H - 1 - Math.floor(c / D)']],
  'untransposed-qkv': [['at(weight, 0, h * D + j, c)', 'at(weight, 0, c, h * D + j)']],
  'untransposed-o': [['at(w.o, 0, j, c)', 'at(w.o, 0, c, j)']],
  'keys-for-values': [['(s) => at(v, h, s, j)', '(s) => at(k, h, s, j)']],
}

/** Raises Error where the text to replace is gone: a mutant that changes nothing would prove nothing. */
export function mutate(code: string, fault: string): string {
  const replacements = MUTANTS[fault]
  if (!replacements) throw new Error(`no mutant ${fault}`)
  return replacements.reduce((text, [from, to]) => {
    if (!text.includes(from)) throw new Error(`mutant ${fault}: attention.ts no longer holds ${from}`)
    return text.replaceAll(from, to)
  }, code)
}
