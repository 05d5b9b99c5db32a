//! Laws that hold for every algorithm, whatever the numbers: each is a sentence, tried on random limits and requests.
#![allow(clippy::indexing_slicing, reason = "a law that indexes wrongly is a law that fails")]

mod clock;
mod edits;
mod envelope;
mod keys;
mod refund_and_undo;
mod several_limits;
mod standings;
mod state_numbers;
mod take_one;
