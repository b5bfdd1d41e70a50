// The pages on their own. The address of a page is after "#": the server has one page, behind any path prefix.
import { Button, ChakraProvider, defaultSystem, Flex, Text } from "@chakra-ui/react";
import { StrictMode, useEffect, useState } from "react";
import { createRoot } from "react-dom/client";
import { HashRouter } from "react-router-dom";
import { App } from "../App";
import { STILL } from "../parts/motion";

const CHOSEN = "stateflow-colours";
const dark = matchMedia("(prefers-color-scheme: dark)");

function Page() {
  const [choice, setChoice] = useState(() => localStorage.getItem(CHOSEN));
  const [systemIsDark, setSystemIsDark] = useState(dark.matches);
  const isDark = choice === null ? systemIsDark : choice === "dark";
  useEffect(() => {
    const follow = () => {
      setSystemIsDark(dark.matches);
    };
    dark.addEventListener("change", follow);
    return () => {
      dark.removeEventListener("change", follow);
    };
  }, []);
  useEffect(() => {
    document.documentElement.classList.toggle("dark", isDark);
    document.documentElement.style.colorScheme = isDark ? "dark" : "light";
  }, [isDark]);
  const toggle = () => {
    const next = isDark ? "light" : "dark";
    localStorage.setItem(CHOSEN, next);
    setChoice(next);
  };
  return (
    <>
      <Flex as="header" css={STILL} align="center" justify="space-between" px={{ base: 3, md: 6 }} py={2} borderBottomWidth="1px">
        <Text fontWeight="bold">stateflow</Text>
        <Button size="xs" variant="outline" onClick={toggle}>
          {isDark ? "Light" : "Dark"}
        </Button>
      </Flex>
      <main>
        <App base="" />
      </main>
    </>
  );
}

const root = document.getElementById("pages");
if (root === null) throw new Error("index.html has no element with the id pages");
createRoot(root).render(
  <StrictMode>
    <ChakraProvider value={defaultSystem}>
      <HashRouter>
        <Page />
      </HashRouter>
    </ChakraProvider>
  </StrictMode>,
);
