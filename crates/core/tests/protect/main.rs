//! The controllers: their worked examples and their laws.
#![allow(clippy::indexing_slicing, reason = "a law that indexes wrongly is a law that fails")]

mod adaptive;
mod examples;
mod learning;
mod pacing;
mod shedding;
mod slots;
mod spreading;
