// Chakra UI of Airflow's page, with Airflow's theme.
import type * as ChakraTypes from "@chakra-ui/react";

const chakra = (globalThis as unknown as { ChakraUI: typeof ChakraTypes }).ChakraUI;
export const { Alert, Badge, Box, Button, Flex, Heading, Input, Link, NativeSelect, SimpleGrid, Skeleton, Stack, Text, Textarea } = chakra;
