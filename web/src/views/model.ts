/** A trained model: loaded when the reader comes near, run on the reader's own text. */
import { example as exampleFile, listing } from 'virtual:model'
import { readExample } from '../io/example'
import { type Loaded, loadModel, openModel } from '../io/load'
import { type Text, begin, extend, rowsOf } from '../math/text'
import { distribution } from '../math/sampling'
import type { Store } from '../state/store'
import { MAX_TEXT } from '../state/url'
import { byId, h, setText } from '../ui/dom'
import { count } from '../ui/format'
import { SHOWN, reading } from './reading'
import { swap } from './swap'
import { cacheStrip, candidates, choose, nextTable, sampler } from './writing'

const PAUSE = 150 // ms after a key, before the text is read

/** Give the thread back, so that keys and pictures come through. */
const pause = (): Promise<void> => new Promise((resolve) => { setTimeout(resolve) })

export function model(store: Store): void {
  let loaded: Loaded | null = null
  let text: Text | null = null
  let running = false
  let milliseconds: number[] = []
  let wanted = 0 // the newest reading that was asked for; an older one gives up

  // what stands before the model is there
  const status = h('p', { id: 'model-status', role: 'status' })
  const bar = h('progress', { max: listing.bytes, value: 0, 'aria-label': 'Loading the model' })
  const load = h('button', { type: 'button', id: 'model-load', class: 'primary', onclick: () => void fetchModel() }, 'Load the model')
  const cancel = h('button', { type: 'button', id: 'model-cancel', onclick: () => aborter?.abort() }, 'Cancel')
  const file = h('input', { type: 'file', id: 'model-file', accept: '.safetensors', onchange: () => void openFile() })
  const opener = h('details', { class: 'own' }, h('summary', {}, 'Open your own export'),
    h('p', { class: 'quiet' }, 'Any run of octlm with a tokenizer of its own: python scripts/export.py model runs/day1 --out DIR writes model.safetensors. It stays on your computer.'),
    h('div', { class: 'field' }, h('label', { for: 'model-file' }, 'model.safetensors'), file))
  let aborter: AbortController | null = null

  // the reader's text
  const box = h('textarea', { id: 'model-text', rows: 3, maxlength: MAX_TEXT, spellcheck: 'false', autocomplete: 'off', 'aria-describedby': 'model-problem', oninput: () => later() })
  const problem = h('p', { id: 'model-problem', class: 'problem', role: 'alert' })
  const output = h('p', { class: 'output', id: 'model-output'})
  const write = h('div', { class: 'write' }, h('label', { for: 'model-text' }, 'Your text: the beginning of a fable, for it knows nothing else'), box, problem)
  const read = reading(store)
  const next = nextTable()
  const knobs = sampler(store, {
    onStep: () => void writeOn(1), onRun: () => void writeOn(Infinity), onStop: () => { running = false },
    onBack: () => void readText(),
  }, output)
  const strip = cacheStrip(store)
  const experiment = swap(store, drive)
  const live = h('div', { class: 'live' })
  byId('model-body').replaceChildren(
    h('div', { class: 'loading' }, status, bar, h('div', { class: 'buttons' }, load, cancel)), write, read.element,
    h('div', { class: 'two writing' }, next.element, live), opener)
  write.hidden = true
  bar.hidden = true
  cancel.hidden = true

  /** Run a computation with pauses between its slices; null when a newer one has been asked for. */
  async function drive<T>(steps: Generator<void, T>, current: () => boolean = () => true): Promise<T | null> {
    for (;;) {
      const step = steps.next()
      if (step.done) return step.value
      await pause()
      if (!current()) return null
    }
  }

  function showExample(): void {
    const found = readExample(exampleFile)
    const pass = { logits: { shape: [0, 0], data: new Float32Array() }, attention: found.attention }
    read.show({
      rows: rowsOf(pass, found.pieces.length), pieces: found.pieces, ids: found.ids, prompt: found.pieces.length,
      layers: found.attention.length, heads: found.attention[0]?.shape[0] ?? 0,
    })
    next.show(found.next, `Precomputed by PyTorch, with the same model: probabilities over all ${count(listing.config.vocab_size)} tokens.`)
  }

  async function fetchModel(): Promise<void> {
    if (loaded || aborter) return
    aborter = new AbortController()
    load.hidden = true
    bar.hidden = false
    cancel.hidden = false
    setText(status, 'Loading the model …')
    try {
      await take(await loadModel('./data/model.safetensors', listing, (received) => { bar.value = received }, aborter.signal))
    } catch (error) {
      fail(aborter.signal.aborted ? 'Loading was cancelled.' : `The model could not be loaded: ${wordsOf(error)}.`)
    } finally {
      aborter = null
      bar.hidden = true
      cancel.hidden = true
    }
  }

  async function openFile(): Promise<void> {
    const chosen = file.files?.[0]
    if (!chosen) return
    try {
      await take(openModel(new Uint8Array(await chosen.arrayBuffer())))
    } catch (error) {
      fail(`${chosen.name} could not be opened: ${wordsOf(error)}.`)
    }
    file.value = '' // the same file may be chosen again
  }

  function fail(words: string): void {
    setText(status, words)
    status.classList.add('problem')
    load.hidden = loaded !== null
    setText(load, 'Try again')
  }

  async function take(now: Loaded): Promise<void> {
    loaded = now
    load.hidden = true
    write.hidden = false
    status.classList.remove('problem')
    const { run, bytes, sha256 } = now
    const score = run.bits_per_byte === null ? '' : `; ${run.bits_per_byte.toFixed(4)} bits per byte on text that it never saw${run.oracle_bits_per_byte === null ? '' : `, of ${run.oracle_bits_per_byte.toFixed(4)} at best`}`
    setText(status, `The model is here: ${count(now.model.parameters)} parameters, ${now.model.config.n_layers} layers, running in this browser.`)
    setText(byId('model-provenance'), `Source: model.safetensors (${count(bytes)} bytes, float16), sha256 ${sha256.slice(0, 12)}…; run ${run.name}, step ${count(run.step)}, trained on ${run.data} with PyTorch ${run.torch}${score}.`)
    live.replaceChildren(knobs.element)
    live.closest('.writing')!.after(strip.element, experiment.element)
    await readText()
  }

  let timer = 0
  function later(): void {
    clearTimeout(timer)
    timer = window.setTimeout(() => store.set({ text: box.value.slice(0, MAX_TEXT) }), PAUSE)
  }

  /** Read the text of the state from its beginning. */
  async function readText(): Promise<void> {
    if (!loaded) return
    running = false
    const mine = ++wanted
    const words = store.get().text
    if (box.value !== words) box.value = words
    const { model: decoder, tokenizer } = loaded
    let ids: number[]
    try {
      ids = tokenizer.encode(words)
    } catch (error) {
      return refuse(wordsOf(error))
    }
    if (ids.length === 0) return refuse('A model needs one token at least: write a word')
    const room = Math.min(SHOWN, decoder.config.context_length)
    box.removeAttribute('aria-invalid')
    setText(problem, ids.length > room ? `These are ${ids.length} tokens; the model is given the first ${room}.` : '')
    const found = await drive(begin(decoder, ids.slice(0, room), decoder.config.context_length), () => mine === wanted)
    if (!found || mine !== wanted) return
    milliseconds = []
    await show(found)
  }

  function refuse(why: string): void {
    box.setAttribute('aria-invalid', 'true')
    setText(problem, `${why}.`)
  }

  async function show(now: Text): Promise<void> {
    if (!loaded) return
    text = now
    const { tokenizer } = loaded
    const { config } = now.model
    read.show({ rows: now.rows, pieces: now.ids.map(tokenizer.piece), ids: now.ids, prompt: now.prompt, layers: config.n_layers, heads: config.n_heads })
    output.replaceChildren(tokenizer.decode(now.ids.slice(0, now.prompt)), h('mark', { 'data-tokens': now.ids.length - now.prompt }, tokenizer.decode(now.ids.slice(now.prompt))))
    strip.show(now, milliseconds)
    showNext(now)
    if (!running) await experiment.show(now, tokenizer)
  }

  /** Why the text cannot go on; '' when it can. */
  function ending({ ids, prompt, model: { config } }: Text): string {
    return ids.length > prompt && ids.at(-1) === loaded?.tokenizer.eot ? 'The model ended its text.'
      : ids.length >= config.context_length ? `The context is full: ${config.context_length} tokens.` : ''
  }

  function showNext(now: Text): void {
    if (!loaded) return
    knobs.show(running, ending(now), now.ids.length - now.prompt)
    try {
      const found = distribution(now.logits, store.get(), loaded.tokenizer.has)
      const kept = found.fate.filter((fate) => fate === 'kept').length
      next.show(candidates(found, loaded.tokenizer),
        `“model” is over all ${count(now.model.config.vocab_size)} tokens; its entropy is ${found.entropy.toFixed(2)} bits. ${count(kept)} ${kept === 1 ? 'token' : 'tokens'} can be drawn.`)
    } catch (error) {
      next.show([], `${wordsOf(error)}.`)
    }
  }

  /** Write tokens, one after another, until there are so many, the text ends, or the reader stops it. */
  async function writeOn(tokens: number): Promise<void> {
    if (!loaded || !text || running) return
    const mine = ++wanted
    running = true
    for (let n = 0; n < tokens && running && ending(text) === ''; n++) {
      const { id } = choose(text, loaded.tokenizer, store.get())
      let spent = 0 // without the pauses
      const steps = extend(text, id, store.get().cache)
      let found: Text | null = null
      while (!found) {
        const start = performance.now()
        const step = steps.next()
        spent += performance.now() - start
        if (step.done) found = step.value
        else if (!store.get().cache) await pause() // a single token takes a few ms: no pause within
        if (mine !== wanted) return
      }
      milliseconds = [...milliseconds, spent]
      text = found
      await show(found)
      await pause()
      if (mine !== wanted) return
    }
    running = false
    await show(text)
  }

  store.onChange((state, before) => {
    if (state.text !== before.text) void readText()
    else if (text && (state.temperature !== before.temperature || state.topK !== before.topK || state.topP !== before.topP || state.seed !== before.seed)) showNext(text)
  })

  showExample()
  if (location.protocol === 'file:') {
    load.hidden = true
    setText(status, 'Browsers do not let a page that was opened from a file read the files beside it, so the model was not fetched. Open public/data/model.safetensors below, or serve this folder: python -m http.server.')
    opener.open = true
    return
  }
  setText(status, `A model of ${count(listing.parameters)} parameters, ${(listing.bytes / 1e6).toFixed(1)} MB, comes when you scroll here. Below: what PyTorch computed with it for one text.`)
  new IntersectionObserver((entries, watch) => {
    if (!entries.some(({ isIntersecting }) => isIntersecting)) return
    watch.disconnect()
    void fetchModel()
  }, { rootMargin: '200px' }).observe(byId('model'))
}

function wordsOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error)
}
