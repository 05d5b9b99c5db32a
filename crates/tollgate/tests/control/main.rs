//! The control plane from a shell: a server from its first run on, the commands, and the walkthrough of `docs/control-plane.md`.

mod commands;
mod failures;
mod first_run;
mod fleet;
mod http;
mod page;
mod program;
mod propagation;
mod restarts;
mod secrets;
mod stores;
mod stub;
mod walkthrough;
