//! The program as a person and a shell meet it: started, asked, changed under way, and stopped.

mod cli;
mod clients;
mod counters;
mod docs;
mod envoy;
mod instances;
mod listeners;
mod misspellings;
mod otlp;
mod ratelimit;
mod reload;
mod resp;
mod serve;
mod shared_store;
mod shipped;
mod simulate;
mod slow_store;
mod test_server;
mod webhooks;
