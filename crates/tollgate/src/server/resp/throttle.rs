//! `CL.THROTTLE`: parses its arguments.

use super::reply_writer::{ErrorReply, Escaped};
use tollgate_limiter::core::{Cell, Cost};

/// One command.
#[derive(Clone, Copy, Debug)]
pub(super) struct Throttle<'a> {
    pub(super) key: &'a [u8],
    pub(super) cell: Cell,
    pub(super) op: ThrottleOp,
}

/// The limit of a command.
#[derive(Clone, Copy, Debug)]
pub(super) struct ThrottleParams {
    numbers: [i64; 3],
    cell: Cell,
}

/// The effect of the quantity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ThrottleOp {
    Consume(Cost),
    /// A negative quantity.
    Refund(Cost),
}

/// Parses the arguments behind the name. `last` are the parameters of the previous command, which are usually the same.
#[inline]
pub(super) fn read<'a>(arguments: &[&'a [u8]], last: &mut Option<ThrottleParams>) -> Result<Throttle<'a>, ErrorReply> {
    let (key, burst, count, period, quantity) = match *arguments {
        [key, burst, count, period] => (key, burst, count, period, &b"1"[..]),
        [key, burst, count, period, quantity] => (key, burst, count, period, quantity),
        _ => return Err(USAGE.into()),
    };
    let numbers = [integer(burst)?, integer(count)?, integer(period)?];
    let op = ThrottleOp::from_number(integer(quantity)?);
    let params = match last {
        Some(params) if params.numbers == numbers => params,
        _ => last.insert(ThrottleParams::new(numbers)?),
    };
    let cell = params.cell;
    Ok(Throttle { key, cell, op })
}

impl ThrottleParams {
    #[cold]
    fn new(numbers: [i64; 3]) -> Result<Self, ErrorReply> {
        let [burst, count, period] = numbers;
        if count == 0 || period == 0 {
            return Err(ZERO.into());
        }
        let (Ok(burst), Ok(count), Ok(period)) = (burst.try_into(), count.try_into(), period.try_into()) else {
            return Err(INVALID.into());
        };
        // No other numbers are too large or too small.
        let cell = Cell::new(burst, count, period).map_err(|_| ZERO)?;
        Ok(Self { numbers, cell })
    }
}

impl ThrottleOp {
    #[inline]
    fn from_number(number: i64) -> Self {
        let units = Cost::from_quantity(number.unsigned_abs());
        match number >= 0 {
            true => Self::Consume(units),
            false => Self::Refund(units),
        }
    }
}

#[inline]
fn integer(word: &[u8]) -> Result<i64, ErrorReply> {
    // Usually a few digits.
    let add = |sum: i64, byte: &u8| byte.is_ascii_digit().then(|| sum * 10 + i64::from(byte - b'0'));
    if !word.is_empty()
        && word.len() < 19
        && let Some(number) = word.iter().try_fold(0, add)
    {
        return Ok(number);
    }
    let parsed = std::str::from_utf8(word).ok().and_then(|word| word.parse().ok());
    parsed.ok_or_else(|| format!("{STORE_ERROR}Couldn't parse as integer: {}", Escaped(word)))
}

/// The prefix of redis-cell's errors.
pub(super) const STORE_ERROR: &str = "Cell error: Store error: ";
const USAGE: &str =
    "Cell error: Store error: Usage: cl.throttle <key> <max_burst> <count per period> <period> [<quantity>]";
const ZERO: &str = "Cell error: Store error: Zero rates are not supported";
const INVALID: &str = "Cell error: Store error: Invalid rate";
