//! The program as a person and a shell meet it: started, asked, changed under way, and stopped.

mod cli;
mod counters;
mod envoy;
mod listeners;
mod pages;
mod ratelimit;
mod reload;
mod resp;
mod running;
mod serve;
mod shared;
