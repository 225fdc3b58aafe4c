declare const __COMMIT__: string

declare module 'virtual:attention' {
  export const base64: string
  export const manifest: unknown
}

declare module 'virtual:model' {
  export const listing: import('./io/load').Listing
  export const example: string
}

declare module 'virtual:memory' {
  export const memory: import('./math/memory').Memory | null
}
