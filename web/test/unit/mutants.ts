/** Deliberate faults of the one layer: each is a replacement in src/math/attention.ts, and parity must find every one. */
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

/** Deliberate faults of the decoder, in src/math/model.ts, or in the parts that it is made of. */
export const MODEL_MUTANTS: typeof MUTANTS = {
  'kv-heads-taken-in-turn': [['Math.floor(h / (H / K))', 'h % K']],
  'scores-unscaled': [['Math.fround(Math.fround(score) / scale)', 'Math.fround(score)']],
  'window-one-too-wide': [['query - key < window', 'query - key <= window']],
  'stride-from-the-query': [['key % stride', '(query - key) % stride']],
  'keys-for-values-in-the-cache': [['cache.values[l]!.data.set(linear(normed, layer.v).data', 'cache.values[l]!.data.set(k.data']],
  'no-query-norm': [['turn(layer.qNorm(heads(linear(normed, layer.q), D))', 'turn(heads(linear(normed, layer.q), D)']],
  'no-softcap': [['if (cap > 0)', 'if (cap > 99)']],
  'no-final-norm': [['linear(model.norm(x), model.head)', 'linear(x, model.head)']],
  'no-residual': [['x = layer.afterAttention(sum(x, linear(read.output, layer.o)))', 'x = layer.afterAttention(linear(read.output, layer.o))']],
  'embeddings-unscaled-beside-waves': [['token * Math.sqrt(C) + wave', 'token + wave']],
  'cosines-for-sines': [['c % 2 === 0 ? Math.sin(angle) : Math.cos(angle)', 'c % 2 === 1 ? Math.sin(angle) : Math.cos(angle)']],
}
export const MODULE_MUTANTS: typeof MUTANTS = {
  'rope-pairs-neighbours': [['x.data[row * D + i]!, x.data[row * D + half + i]!', 'x.data[row * D + 2 * i]!, x.data[row * D + 2 * i + 1]!']],
  'rope-unscaled': [['(past + Math.floor(row / n)) / scale', '(past + Math.floor(row / n))']],
  'rope-base-forgotten': [['theta ** -', '10000 ** -']],
  'gelu-by-sigmoid': [['0.5 * x * (1 + erf(x / Math.SQRT2))', 'x / (1 + Math.exp(-1.702 * x))']],
  'relu-not-squared': [['Math.max(x, 0) ** 2', 'Math.max(x, 0)']],
  'sigmoid-for-silu': [['x / (1 + Math.exp(-x))', '1 / (1 + Math.exp(-x))']],
  'mean-left-in': [['(row[c]! - mean) * scale', 'row[c]! * scale']],
  'bias-forgotten': [['if (bias)', 'if (!weight)']],
}

/** Raises Error where the text to replace is gone: a mutant that changes nothing would prove nothing. */
export function mutate(code: string, fault: string): string {
  const replacements = { ...MUTANTS, ...MODEL_MUTANTS, ...MODULE_MUTANTS }[fault]
  if (!replacements) throw new Error(`no mutant ${fault}`)
  return replacements.reduce((text, [from, to]) => {
    if (!text.includes(from)) throw new Error(`mutant ${fault}: the source no longer holds ${from}`)
    return text.replaceAll(from, to)
  }, code)
}
