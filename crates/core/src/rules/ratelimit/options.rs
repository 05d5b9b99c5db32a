//! How descriptors are meant beside what their files say.

use crate::quantity::Share;

/// What is set about them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RatelimitOptions {
    /// A refused request takes nothing anywhere, as with rules of our own.
    pub strict: bool,
    /// The share of a limit from which on it counts as near.
    pub near_share: f32,
    /// Whether answers tell what the request was and what passed, as metadata.
    pub metadata: bool,
}

impl Default for RatelimitOptions {
    /// As it is where nothing is set.
    fn default() -> Self {
        Self {
            strict: false,
            near_share: 0.8,
            metadata: false,
        }
    }
}

impl RatelimitOptions {
    /// A share as statistics reckon with it.
    #[expect(
        clippy::float_arithmetic,
        clippy::cast_precision_loss,
        reason = "a figure of statistics, which are reckoned in single precision"
    )]
    pub const fn near(share: Share) -> f32 {
        share.millionths() as f32 / Share::ALL.millionths() as f32
    }
}
