import { type RefObject, useEffect, useRef, useState } from "react";

/** What the buttons at the bottom of a window cover, in pixels. */
const COVERED = 130;

/** An element, and whether it has been in the part of the window that nothing covers. */
export function useSeen(): [RefObject<HTMLDivElement | null>, boolean] {
  const element = useRef<HTMLDivElement>(null);
  const [isSeen, setSeen] = useState(false);
  useEffect(() => {
    if (element.current === null || isSeen) return;
    const observer = new IntersectionObserver(
      (entries) => {
        if (entries.some((each) => each.isIntersecting)) setSeen(true);
      },
      { rootMargin: `0px 0px -${COVERED}px 0px` },
    );
    observer.observe(element.current);
    return () => {
      observer.disconnect();
    };
  });
  return [element, isSeen];
}
