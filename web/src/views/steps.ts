/** The nine steps: what each reads, what it gives, and what there is to see in it. */
import type { TensorName } from '../math/attention'
import type { StepId } from '../state/url'

export type WeightName = 'q_proj' | 'k_proj' | 'v_proj' | 'o_proj'

export interface Table {
  readonly tensor: TensorName | WeightName
  readonly head?: number // fixed; else the chosen one
}

export interface Step {
  readonly id: StepId
  readonly name: string
  readonly reads: readonly Table[]
  readonly gives: readonly TensorName[]
  readonly weights: readonly WeightName[] // shown on demand
  readonly text: readonly string[]
}

export const STEP_LIST: readonly Step[] = [
  {
    id: 'input', name: 'Input', reads: [], gives: ['x'], weights: [],
    text: [
      'Eight positions, t0 to t7, and a vector of sixteen numbers for each. In a model these would stand for eight tokens; here they are random, drawn from seed 0, so that nothing hides behind a meaning.',
      'Until the Scores step no row knows of any other. Whatever t5 is to learn about t2, it has to read it in this layer.',
    ],
  },
  {
    id: 'qkv', name: 'Q/K/V', reads: [{ tensor: 'x' }], gives: ['q', 'k', 'v'], weights: ['q_proj', 'k_proj', 'v_proj'],
    text: [
      'Each row is turned three times by a matrix: into a query (what am I looking for?), a key (what can I be found by?) and a value (what do I hand over?). The same three matrices serve every position.',
      'The sixteen columns are cut into two heads of eight. A second head costs nothing extra: the matrices stay 16 × 16, and two searches over eight columns take as many products as one over sixteen. What it buys is a second, independent opinion on where to look.',
    ],
  },
  {
    id: 'scores', name: 'Scores', reads: [{ tensor: 'q' }, { tensor: 'k' }], gives: ['raw'], weights: [],
    text: [
      'Every query meets every key: row t5, column t2 is how well what t5 looks for fits what t2 offers. Both directions are there, also the forbidden one, t2 looking at t5.',
      'This is the square of the layer. Twice as many positions make four times as many scores.',
    ],
  },
  {
    id: 'scale', name: 'Scale', reads: [{ tensor: 'raw' }], gives: ['scaled'], weights: [],
    text: [
      'Each score is a sum of D = 8 products, and such a sum spreads with √D. Dividing by √8 ≈ 2.83 undoes that: the spread no longer depends on how wide a head is.',
      'Without it, a wide head starts with scores so far apart that the softmax puts nearly everything on one position. Then almost no gradient is left to tell it that another would have been better.',
    ],
  },
  {
    id: 'mask', name: 'Mask', reads: [{ tensor: 'scaled' }], gives: ['masked'], weights: [],
    text: [
      'The line between reading and cheating. A model learns by guessing the next token; if t2 could read t3, the answer would lie open and there would be nothing to learn. So each score above the diagonal becomes −∞: not small, gone.',
      'Switch the mask off and this step does nothing. The section below shows what leaks then.',
    ],
  },
  {
    id: 'softmax', name: 'Softmax', reads: [{ tensor: 'masked' }], gives: ['weights'], weights: [],
    text: [
      'Each row becomes shares that add up to 1: e to the power of the score, over the sum of the row. e to the −∞ is exactly 0, so a masked position gets exactly nothing, and its share goes to the others.',
      'With the mask on, t0 has only itself to read: weight 1.00. The other rows lean this way or that by chance, for the layer is untrained: what you see is arithmetic and not a habit.',
    ],
  },
  {
    id: 'values', name: 'Weighted values', reads: [{ tensor: 'weights' }, { tensor: 'v' }], gives: ['values'], weights: [],
    text: [
      'Each row takes its share of every value vector and adds them up. It is a weighted mean: t5 leaves with a mixture of what t0 to t5 handed over.',
      'Here the information moves. Every step before only decided from where.',
    ],
  },
  {
    id: 'concat', name: 'Head concat', reads: [{ tensor: 'values', head: 0 }, { tensor: 'values', head: 1 }], gives: ['joined'], weights: [],
    text: [
      'The two heads are laid side by side: columns 0 to 7 from head 1, columns 8 to 15 from head 2. Nothing is computed, only put in its place, and the rows are sixteen wide again.',
    ],
  },
  {
    id: 'output', name: 'Output projection', reads: [{ tensor: 'joined' }], gives: ['output'], weights: ['o_proj'],
    text: [
      'A last matrix mixes what the heads brought: each output column may draw on both. In a decoder this result is added to the input of the layer, so a position keeps what it knew and gains what it read.',
    ],
  },
]

export const NAMES: Readonly<Record<TensorName | WeightName, string>> = {
  x: 'input x', q: 'queries q', k: 'keys k', v: 'values v', raw: 'scores', scaled: 'scaled scores', masked: 'masked scores',
  weights: 'attention weights', values: 'weighted values', joined: 'joined heads', output: 'output',
  q_proj: 'weights W_q', k_proj: 'weights W_k', v_proj: 'weights W_v', o_proj: 'weights W_o',
}

/** How a cell of this tensor is written. */
export const SYMBOLS: Readonly<Record<TensorName | WeightName, string>> = {
  x: 'x', q: 'q', k: 'k', v: 'v', raw: 'score', scaled: 'scaled', masked: 'masked', weights: 'weight', values: 'value', joined: 'joined', output: 'output',
  q_proj: 'W_q', k_proj: 'W_k', v_proj: 'W_v', o_proj: 'W_o',
}

const sub = (base: string, index: string): string => `<msub><mi>${base}</mi><mrow>${index}</mrow></msub>`
const pair = (a: string, b: string): string => `<mi>${a}</mi><mo>,</mo><mi>${b}</mi>`
const sum = (over: string, of: string): string => `<munder><mo>∑</mo><mi>${over}</mi></munder>${of}`
const maths = (inner: string): string => `<math display="block"><mrow>${inner}</mrow></math>`
const projected = (name: 'q' | 'k' | 'v'): string =>
  maths(`${sub(name, pair('t', 'd'))}<mo>=</mo>${sum('c', `${sub('x', pair('t', 'c'))}<mo>⁢</mo><msubsup><mi>W</mi><mrow>${pair('d', 'c')}</mrow><mi>${name}</mi></msubsup>`)}`)

/** With the mask off the step copies. */
export const UNMASKED = maths(`${sub('m', pair('t', 'u'))}<mo>=</mo><msub><mover><mi>s</mi><mo>¯</mo></mover><mrow>${pair('t', 'u')}</mrow></msub>`)

export const FORMULAS: Readonly<Record<TensorName, string>> = {
  x: maths(`${sub('x', pair('t', 'c'))}<mo>~</mo><mi>N</mi><mo>(</mo><mn>0</mn><mo>,</mo><mn>1</mn><mo>)</mo>`),
  q: projected('q'),
  k: projected('k'),
  v: projected('v'),
  raw: maths(`${sub('s', pair('t', 'u'))}<mo>=</mo>${sum('d', `${sub('q', pair('t', 'd'))}<mo>⁢</mo>${sub('k', pair('u', 'd'))}`)}`),
  scaled: maths(`<msub><mover><mi>s</mi><mo>¯</mo></mover><mrow>${pair('t', 'u')}</mrow></msub><mo>=</mo><mfrac>${sub('s', pair('t', 'u'))}<msqrt><mi>D</mi></msqrt></mfrac>`),
  masked: maths(`${sub('m', pair('t', 'u'))}<mo>=</mo><mo>{</mo><mtable><mtr><mtd><msub><mover><mi>s</mi><mo>¯</mo></mover><mrow>${pair('t', 'u')}</mrow></msub></mtd><mtd><mi>u</mi><mo>≤</mo><mi>t</mi></mtd></mtr><mtr><mtd><mo>−</mo><mi>∞</mi></mtd><mtd><mi>u</mi><mo>&gt;</mo><mi>t</mi></mtd></mtr></mtable>`),
  weights: maths(`${sub('a', pair('t', 'u'))}<mo>=</mo><mfrac><msup><mi>e</mi><mrow>${sub('m', pair('t', 'u'))}<mo>−</mo><mi>max</mi></mrow></msup><mrow>${sum('j', `<msup><mi>e</mi><mrow>${sub('m', pair('t', 'j'))}<mo>−</mo><mi>max</mi></mrow></msup>`)}</mrow></mfrac>`),
  values: maths(`${sub('y', pair('t', 'd'))}<mo>=</mo>${sum('u', `${sub('a', pair('t', 'u'))}<mo>⁢</mo>${sub('v', pair('u', 'd'))}`)}`),
  joined: maths(`${sub('z', pair('t', 'c'))}<mo>=</mo><msubsup><mi>y</mi><mrow><mi>t</mi><mo>,</mo><mi>c</mi><mo>mod</mo><mn>8</mn></mrow><mrow><mo>(</mo><mo>⌊</mo><mi>c</mi><mo>/</mo><mn>8</mn><mo>⌋</mo><mo>+</mo><mn>1</mn><mo>)</mo></mrow></msubsup>`),
  output: maths(`${sub('o', pair('t', 'j'))}<mo>=</mo>${sum('c', `${sub('z', pair('t', 'c'))}<mo>⁢</mo><msubsup><mi>W</mi><mrow>${pair('j', 'c')}</mrow><mi>o</mi></msubsup>`)}`),
}
