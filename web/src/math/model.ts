/**
 * octlm's decoder, ids -> logits, for every variant that it trains:
 *
 *   x = embed(ids) + positions
 *   x <- after(x + attention(before(x)))      x <- after(x + mlp(before(x)))      for each layer
 *   logits = head(norm(x))
 *
 * Tensors are float32, as in PyTorch; sums run in float64 and are rounded once, at the end. Each row is computed by
 * itself, in one order: a row comes out the same to the last bit whether its past was computed with it or kept.
 */
import { type Cache, createCache } from './kvcache'
import { NORMS, ACTIVATIONS, type Matrix, type Norm, linear, rotation } from './modules'
import { type Tensor, zeros } from './tensor'

export interface ModelConfig {
  readonly vocab_size: number
  readonly context_length: number
  readonly dim: number
  readonly n_layers: number
  readonly n_heads: number
  readonly n_kv_heads: number
  readonly head_dim: number
  readonly hidden_dim: number
  readonly norm: 'layernorm' | 'rmsnorm'
  readonly norm_placement: 'pre' | 'post'
  readonly norm_eps: number
  readonly mlp: 'gelu' | 'swiglu' | 'relu2'
  readonly positions: 'learned' | 'sinusoidal' | 'rope' | 'none'
  readonly rope_theta: number
  readonly rope_scale: number
  readonly windows: readonly number[] // a layer each; 0 = no window
  readonly strides: readonly number[]
  readonly qk_norm: boolean
  readonly logit_softcap: number // 0 = off
  readonly tie_head: boolean
  readonly bias: boolean
}

interface Layer {
  readonly beforeAttention: Norm
  readonly afterAttention: Norm
  readonly beforeMlp: Norm
  readonly afterMlp: Norm
  readonly q: Matrix
  readonly k: Matrix
  readonly v: Matrix
  readonly o: Matrix
  readonly qNorm: Norm
  readonly kNorm: Norm
  readonly gate: Matrix | undefined
  readonly up: Matrix
  readonly down: Matrix
  readonly window: number
  readonly stride: number
}

export interface Model {
  readonly config: ModelConfig
  readonly parameters: number
  readonly embed: Tensor // (V, C)
  readonly table: Tensor | undefined // (context, C), learned positions
  readonly layers: readonly Layer[]
  readonly norm: Norm
  readonly head: Matrix
}

/** What one pass over T new tokens gives, S tokens with those of the cache. */
export interface Pass {
  readonly logits: Tensor // (T, V)
  readonly attention: readonly Tensor[] // (H, T, S) a layer
}

/** Put a model together; raises Error that names a tensor that is missing, left over, or of a wrong shape. */
export function buildModel(config: ModelConfig, tensors: ReadonlyMap<string, Tensor>): Model {
  const { dim, n_heads, n_kv_heads, head_dim, hidden_dim, vocab_size, context_length } = config
  const left = new Set(tensors.keys())
  const take = (name: string, ...shape: number[]): Tensor => {
    const tensor = tensors.get(name)
    if (!tensor) throw new Error(`the model has no tensor ${name}`)
    if (tensor.shape.join() !== shape.join()) throw new Error(`${name} has shape [${tensor.shape.join(', ')}], not [${shape.join(', ')}]`)
    left.delete(name)
    return tensor
  }
  const matrix = (name: string, out: number, width: number): Matrix =>
    ({ weight: take(`${name}.weight`, out, width), ...(config.bias ? { bias: take(`${name}.bias`, out) } : {}) })
  const norm = (name: string, here: boolean, width = dim, kind = config.norm): Norm => {
    if (!here) return (x) => x
    const gain = take(`${name}.weight`, width)
    return NORMS[kind](gain, kind === 'layernorm' ? take(`${name}.bias`, width) : gain, config.norm_eps)
  }
  const pre = config.norm_placement === 'pre'
  const embed = take('embed.weight', vocab_size, dim)
  const model: Model = {
    config,
    parameters: [...tensors.values()].reduce((sum, { data }) => sum + data.length, 0),
    embed,
    table: config.positions === 'learned' ? take('positions.table.weight', context_length, dim) : undefined,
    layers: Array.from({ length: config.n_layers }, (_, i): Layer => {
      const at = (name: string): string => `layers.${i}.${name}`
      return {
        beforeAttention: norm(at('before_attention'), pre),
        afterAttention: norm(at('after_attention'), !pre),
        beforeMlp: norm(at('before_mlp'), pre),
        afterMlp: norm(at('after_mlp'), !pre),
        q: matrix(at('attention.q_proj'), n_heads * head_dim, dim),
        k: matrix(at('attention.k_proj'), n_kv_heads * head_dim, dim),
        v: matrix(at('attention.v_proj'), n_kv_heads * head_dim, dim),
        o: matrix(at('attention.o_proj'), dim, n_heads * head_dim),
        qNorm: norm(at('attention.q_norm'), config.qk_norm, head_dim, 'rmsnorm'),
        kNorm: norm(at('attention.k_norm'), config.qk_norm, head_dim, 'rmsnorm'),
        gate: config.mlp === 'swiglu' ? matrix(at('mlp.gate_proj'), hidden_dim, dim) : undefined,
        up: matrix(at('mlp.up_proj'), hidden_dim, dim),
        down: matrix(at('mlp.down_proj'), dim, hidden_dim),
        window: config.windows[i] ?? 0,
        stride: config.strides[i] ?? 0,
      }
    }),
    norm: norm('norm', pre),
    head: { weight: config.tie_head ? embed : take('head.weight', vocab_size, dim) },
  }
  if (left.size > 0) throw new Error(`the model has no place for the tensor ${[...left][0]}`)
  return model
}

/** May a query at this position read that key? The rule of octlm/model/masks.py. */
export function visible(query: number, key: number, window: number, stride: number): boolean {
  return key <= query && (window === 0 || query - key < window || (stride > 0 && key % stride === 0))
}

/**
 * Run the model on the tokens that follow those in the cache, and add them to it.
 *
 * It yields between layers, where a page hands its thread back. Raises RangeError for ids that the model does not have
 * and for more tokens than the cache, or learned positions, hold; the cache is changed by the end of a pass alone.
 */
export function* forward(model: Model, ids: readonly number[], cache: Cache): Generator<void, Pass> {
  const { config, layers } = model
  const { dim: C, n_heads: H, n_kv_heads: K, head_dim: D, vocab_size: V } = config
  const [T, past] = [ids.length, cache.length]
  const S = past + T
  if (T === 0) throw new RangeError('a model needs one token at least')
  const unknown = ids.find((id) => !(Number.isInteger(id) && id >= 0 && id < V))
  if (unknown !== undefined) throw new RangeError(`id ${unknown}: the model has ids from 0 to ${V - 1}`)
  if (S > cache.capacity) throw new RangeError(`${S} tokens: the cache holds ${cache.capacity}`)
  if (model.table && S > config.context_length) throw new RangeError(`${S} tokens: learned positions end at ${config.context_length}`)

  let x = embedded(model, ids, past)
  const turn = rotation(config)
  const attention: Tensor[] = []
  for (const [l, layer] of layers.entries()) {
    const normed = layer.beforeAttention(x)
    const q = turn(layer.qNorm(heads(linear(normed, layer.q), D)), past, H)
    const k = turn(layer.kNorm(heads(linear(normed, layer.k), D)), past, K)
    cache.keys[l]!.data.set(k.data, past * K * D)
    cache.values[l]!.data.set(linear(normed, layer.v).data, past * K * D)
    const read = attend(q.data, cache.keys[l]!.data, cache.values[l]!.data, { H, K, D, T, past, layer })
    attention.push(read.weights)
    x = layer.afterAttention(sum(x, linear(read.output, layer.o)))
    x = layer.afterMlp(sum(x, mlp(layer.beforeMlp(x), layer, config.mlp)))
    yield
  }
  const logits = linear(model.norm(x), model.head)
  const cap = config.logit_softcap
  if (cap > 0) logits.data.forEach((value, i) => { logits.data[i] = cap * Math.tanh(value / cap) })
  cache.length = S
  return { logits: { shape: [T, V], data: logits.data }, attention }

  /** Rows (T, n D) as (T n, D): a norm is over each head's width. */
  function heads(tensor: Tensor, width: number): Tensor {
    return { shape: [tensor.data.length / width, width], data: tensor.data }
  }

  function embedded({ embed, table }: Model, tokens: readonly number[], first: number): Tensor {
    const out = zeros(T, C)
    const waves = config.positions === 'sinusoidal'
    for (const [t, id] of tokens.entries()) {
      for (let c = 0; c < C; c++) {
        const token = embed.data[id * C + c]!
        out.data[t * C + c] = table ? token + table.data[(first + t) * C + c]!
          : waves ? token * Math.sqrt(C) + wave(first + t, c)
            : token
      }
    }
    return out
  }

  function wave(position: number, c: number): number {
    const angle = Math.fround(position * Math.fround(10000 ** -((c - (c % 2)) / C)))
    return c % 2 === 0 ? Math.sin(angle) : Math.cos(angle)
  }
}

/** The same to its end; without a cache, from an empty one. */
export function run(model: Model, ids: readonly number[], cache = createCache(model.config, ids.length)): Pass {
  const steps = forward(model, ids, cache)
  for (;;) {
    const step = steps.next()
    if (step.done) return step.value
  }
}

interface Shape {
  readonly H: number
  readonly K: number
  readonly D: number
  readonly T: number
  readonly past: number
  readonly layer: Layer
}

/** Queries (T, H, D) read keys and values (S, K, D): weights (H, T, S), output (T, H D). */
function attend(
  q: Float32Array, k: Float32Array, v: Float32Array, { H, K, D, T, past, layer: { window, stride } }: Shape,
): { weights: Tensor; output: Tensor } {
  const S = past + T
  const weights = zeros(H, T, S)
  const output = zeros(T, H * D)
  const scale = Math.sqrt(D)
  const scores = new Float64Array(S)
  const mixed = new Float64Array(D)
  for (let h = 0; h < H; h++) {
    const g = Math.floor(h / (H / K)) // the kv head that this query head shares
    for (let t = 0; t < T; t++) {
      const from = (t * H + h) * D
      let largest = -Infinity
      for (let s = 0; s <= past + t; s++) {
        if (!visible(past + t, s, window, stride)) {
          scores[s] = -Infinity
          continue
        }
        const to = (s * K + g) * D
        let score = 0
        for (let d = 0; d < D; d++) score += q[from + d]! * k[to + d]!
        scores[s] = Math.fround(Math.fround(score) / scale)
        largest = Math.max(largest, scores[s]!)
      }
      let total = 0
      for (let s = 0; s <= past + t; s++) total += scores[s] = Math.exp(scores[s]! - largest)
      mixed.fill(0)
      const row = (h * T + t) * S
      for (let s = 0; s <= past + t; s++) {
        const weight = Math.fround(scores[s]! / total)
        weights.data[row + s] = weight
        if (weight === 0) continue
        const to = (s * K + g) * D
        for (let d = 0; d < D; d++) mixed[d]! += weight * v[to + d]!
      }
      output.data.set(mixed, from)
    }
  }
  return { weights, output }
}

function mlp(x: Tensor, { gate, up, down }: Layer, kind: ModelConfig['mlp']): Tensor {
  const hidden = linear(x, up)
  const gated = gate ? linear(x, gate).data : hidden.data
  const act = ACTIVATIONS[kind]
  const { data } = hidden
  for (let i = 0; i < data.length; i++) data[i] = gate ? Math.fround(act(gated[i]!)) * data[i]! : act(data[i]!)
  return linear(hidden, down)
}

function sum(a: Tensor, b: Tensor): Tensor {
  return { shape: a.shape, data: a.data.map((value, i) => value + b.data[i]!) }
}
