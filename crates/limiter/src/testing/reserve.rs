//! Rules with a reserve under test: models of what the reserve promises, and a load that tries to break it.

mod laws;
mod load;

pub use self::laws::{ReserveLaws, ReservedRule};
pub use self::load::{ReserveLoad, ReserveObservation, max_excess};
