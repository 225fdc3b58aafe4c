declare const __COMMIT__: string

declare module 'virtual:attention' {
  export const base64: string
  export const manifest: unknown
}
