import { defineConfig } from '@playwright/test'

const flags = [
  '--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking', '--disable-component-update', '--disable-sync',
]

export default defineConfig({
  testDir: 'test/e2e',
  workers: 2,
  fullyParallel: true,
  timeout: 180_000, // against hanging; the longest takes 20 s on two cores
  reporter: [['list']],
  use: {
    baseURL: 'http://localhost:4173',
    viewport: { width: 1280, height: 900 },
    launchOptions: { executablePath: process.env['CHROMIUM'] ?? '/usr/bin/chromium', args: flags },
  },
  projects: [
    { name: 'flows', testIgnore: 'speed.spec.ts' },
    { name: 'speed', testMatch: 'speed.spec.ts', dependencies: ['flows'], workers: 1 }, // alone on the machine
  ],
  webServer: { command: 'npx vite preview', url: 'http://localhost:4173', timeout: 30_000 },
})
