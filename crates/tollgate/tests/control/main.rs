//! The control plane from a shell: a server, the commands, and the walkthrough of `docs/control-plane.md`.

mod fleet;
mod program;
mod propagation;
mod walkthrough;
