//! A short list that needs no memory of its own while it is short: most attempts meet two or three rules.

/// Up to `N` items in place, more of them on the heap.
#[derive(Debug)]
pub(crate) struct Few<T, const N: usize> {
    here: [T; N],
    count: usize,
    /// All of them, once there are more than `N`.
    spilled: Vec<T>,
}

impl<T: Copy + Default, const N: usize> Few<T, N> {
    /// None yet.
    #[inline]
    pub(crate) fn new() -> Self {
        Self {
            here: [T::default(); N],
            count: 0,
            spilled: Vec::new(),
        }
    }

    /// One more.
    #[inline]
    pub(crate) fn push(&mut self, item: T) {
        match self.here.get_mut(self.count) {
            Some(slot) if self.spilled.is_empty() => {
                *slot = item;
                self.count += 1;
            }
            _ => self.spill(item),
        }
    }

    #[cold]
    fn spill(&mut self, item: T) {
        if self.spilled.is_empty() {
            self.spilled.extend_from_slice(&self.here);
        }
        self.spilled.push(item);
    }

    /// More of them.
    #[inline]
    pub(crate) fn extend(&mut self, items: &[T]) {
        for &item in items {
            self.push(item);
        }
    }

    /// All of them.
    #[inline]
    pub(crate) fn as_slice(&self) -> &[T] {
        if self.spilled.is_empty() {
            self.here.get(..self.count).unwrap_or_default()
        } else {
            &self.spilled
        }
    }

    /// The same, to be changed in place.
    #[inline]
    pub(crate) fn as_mut_slice(&mut self) -> &mut [T] {
        if self.spilled.is_empty() {
            self.here.get_mut(..self.count).unwrap_or_default()
        } else {
            &mut self.spilled
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holds_any_number_in_order() {
        for count in 0..9_u32 {
            let mut few = Few::<u32, 4>::new();
            let items: Vec<u32> = (0..count).collect();
            few.extend(&items);
            assert_eq!(few.as_slice(), items);
            assert_eq!(few.as_mut_slice(), items);
        }
    }
}
