import { Button, Text } from "@chakra-ui/react";
import { Component, type ReactNode } from "react";
import { useLocation } from "react-router-dom";
import { Notice } from "./Loaded";
import { LongText } from "./LongText";

/** Shows why its children cannot be drawn, instead of an empty page. Another address draws them again. */
export function Boundary({ children }: { children: ReactNode }) {
  const { pathname, search } = useLocation();
  return <Caught address={pathname + search}>{children}</Caught>;
}

interface Props {
  address: string;
  children: ReactNode;
}

interface State {
  failure: { error: unknown } | null;
}

/** A class, since React has no hook for the errors of children. */
class Caught extends Component<Props, State> {
  override state: State = { failure: null };

  static getDerivedStateFromError(error: unknown): State {
    return { failure: { error } };
  }

  override componentDidUpdate(before: Props) {
    if (this.state.failure !== null && before.address !== this.props.address) this.setState({ failure: null });
  }

  override render() {
    const { failure } = this.state;
    if (failure === null) return this.props.children;
    return (
      <Notice status="error" title="This part of the page failed">
        <LongText text={String(failure.error)} />
        <Text>It is a fault of the page: the job is not affected. Report it with this message.</Text>
        <Button
          size="sm"
          variant="outline"
          mt={2}
          onClick={() => {
            location.reload();
          }}
        >
          Reload the page
        </Button>
      </Notice>
    );
  }
}
