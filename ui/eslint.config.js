import js from "@eslint/js";
import hooks from "eslint-plugin-react-hooks";
import { defineConfig, globalIgnores } from "eslint/config";
import typescript from "typescript-eslint";

export default defineConfig([
  globalIgnores(["node_modules", "src/generated"]),
  js.configs.recommended,
  {
    files: ["**/*.{ts,tsx}"],
    extends: [typescript.configs.strictTypeChecked, hooks.configs.flat["recommended-latest"]],
    languageOptions: { parserOptions: { projectService: true, tsconfigRootDir: import.meta.dirname } },
    rules: {
      "@typescript-eslint/restrict-template-expressions": ["error", { allowNumber: true }],
      "max-lines-per-function": ["error", { max: 80, skipBlankLines: true, skipComments: true }],
      // Names, reasons and errors come from jobs and people: they are texts, never HTML.
      "no-restricted-syntax": [
        "error",
        { selector: "JSXAttribute[name.name='dangerouslySetInnerHTML']", message: "Texts of jobs are never HTML." },
        { selector: "MemberExpression[property.name=/^(inner|outer)HTML$/]", message: "Texts of jobs are never HTML." },
      ],
    },
  },
  { files: ["**/*.test.{ts,tsx}"], rules: { "max-lines-per-function": "off" } },
  { files: ["*.js"], languageOptions: { globals: { process: "readonly", console: "readonly", URL: "readonly" } } },
]);
