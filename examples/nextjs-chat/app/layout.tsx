import type { ReactNode } from "react";

export const metadata = { title: "Toolscout chat" };

export default function Layout({ children }: { children: ReactNode }): ReactNode {
  return (
    <html lang="en">
      <body style={{ fontFamily: "sans-serif", margin: "2rem auto", maxWidth: "40rem" }}>{children}</body>
    </html>
  );
}
