//! The control plane from a shell: a server, the commands, and the walkthrough of `docs/control-plane.md`.

mod commands;
mod failures;
mod fleet;
mod page;
mod program;
mod stub;
mod walkthrough;
