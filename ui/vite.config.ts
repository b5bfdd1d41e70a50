// Two bundles of the same components: `--mode plugin` takes React and Chakra from Airflow's page, `--mode standalone`
// contains them and has a page of its own.
import { fileURLToPath } from "node:url";
import { defineConfig } from "vitest/config";

const path = (relative: string) => fileURLToPath(new URL(relative, import.meta.url));

/** Packages that Airflow's page has as globals; src/globals exports the names that the pages use. */
const GLOBALS = [
  { find: /^react\/jsx-runtime$/, replacement: path("src/globals/jsx-runtime.ts") },
  { find: /^react$/, replacement: path("src/globals/react.ts") },
  { find: /^react-router-dom$/, replacement: path("src/globals/react-router-dom.ts") },
  { find: /^@chakra-ui\/react$/, replacement: path("src/globals/chakra.ts") },
];

export default defineConfig(({ mode }) => {
  const isPlugin = mode === "plugin";
  return {
    // The page and its files are served together, from any path.
    base: "./",
    define: { "process.env.NODE_ENV": JSON.stringify(mode === "test" ? "test" : "production") },
    resolve: { alias: isPlugin ? GLOBALS : [] },
    // Also in tests and while developing the functions of src/shown, as in a bundle.
    oxc: { jsx: { runtime: "automatic", importSource: "#shown", development: false } },
    build: {
      outDir: process.env.STATEFLOW_PAGES ?? path("../stateflow/ui/static"),
      emptyOutDir: false,
      target: "es2022",
      modulePreload: false,
      // One file: with the pages, the libraries are needed, too.
      chunkSizeWarningLimit: 1000,
      // The texts that the licences of the bundled packages ask for; the plugin's packages are among those of the page.
      license: isPlugin ? false : { fileName: "licenses.txt" },
      rolldownOptions: {
        input: path(isPlugin ? "src/entries/plugin.tsx" : "index.html"),
        // Chakra's components begin with "use client", which means nothing here.
        onLog: (level, log, report) => {
          if (log.code !== "MODULE_LEVEL_DIRECTIVE") report(level, log);
        },
        output: { codeSplitting: false, entryFileNames: isPlugin ? "plugin.js" : "standalone.js" },
      },
    },
    server: { proxy: { "/api": process.env.STATEFLOW_UI ?? "http://127.0.0.1:8480" } },
    // A page with many fields takes seconds on a machine with other work.
    test: { testTimeout: 20_000, environment: "jsdom", include: ["src/**/*.test.{ts,tsx}"], setupFiles: ["src/test-setup.ts"] },
  };
});
