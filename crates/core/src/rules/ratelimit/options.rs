//! Settings that apply to all descriptors.

use crate::quantity::Share;

/// Settings of descriptors.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RatelimitOptions {
    /// A denied request consumes nothing anywhere, as with rules of our own.
    pub strict: bool,
    /// The share of a limit from which on it counts as near.
    pub near_share: f32,
    /// Responses carry the descriptors and the result as metadata.
    pub metadata: bool,
}

impl Default for RatelimitOptions {
    /// The settings of envoyproxy/ratelimit's defaults.
    fn default() -> Self {
        Self {
            strict: false,
            near_share: 0.8,
            metadata: false,
        }
    }
}

impl RatelimitOptions {
    /// Converts a share to the single-precision number of the statistics.
    #[expect(
        clippy::float_arithmetic,
        clippy::cast_precision_loss,
        reason = "a figure of statistics, which are reckoned in single precision"
    )]
    pub const fn near(share: Share) -> f32 {
        share.millionths() as f32 / Share::ALL.millionths() as f32
    }
}
