//! Names of values in settings.

/// `NAMES`: the values of a type, each with its name in settings.
macro_rules! names {
    ($($name:literal => $value:ident),+ $(,)?) => {
        /// Every value with its name in settings.
        pub const NAMES: [(&'static str, Self); [$($name),+].len()] = [$(($name, Self::$value)),+];
    };
}

pub(crate) use names;
