//! A short list that needs no memory of its own while it is short: most attempts meet two or three rules.

/// Up to `N` items in place, more of them on the heap.
#[derive(Debug)]
pub(crate) struct Few<T, const N: usize> {
    here: [T; N],
    count: u32,
    /// All of them, once there are more than `N`. Behind a box, so that a list of few takes little room in a table.
    #[expect(clippy::box_collection, reason = "a vector is three words, and mostly there is none")]
    spilled: Option<Box<Vec<T>>>,
}

impl<T: Copy + Default, const N: usize> Few<T, N> {
    /// None yet.
    #[inline]
    pub(crate) fn new() -> Self {
        Self {
            here: [T::default(); N],
            count: 0,
            spilled: None,
        }
    }

    /// One more.
    #[inline]
    pub(crate) fn push(&mut self, item: T) {
        match self.here.get_mut(self.count as usize) {
            Some(slot) => {
                *slot = item;
                self.count += 1;
            }
            None => self.spill(item),
        }
    }

    #[cold]
    fn spill(&mut self, item: T) {
        let here = &self.here;
        self.spilled.get_or_insert_with(|| Box::new(here.to_vec())).push(item);
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
        match &self.spilled {
            None => self.here.get(..self.count as usize).unwrap_or_default(),
            Some(spilled) => spilled,
        }
    }

    /// The same, to be changed in place.
    #[inline]
    pub(crate) fn as_mut_slice(&mut self) -> &mut [T] {
        match &mut self.spilled {
            None => self.here.get_mut(..self.count as usize).unwrap_or_default(),
            Some(spilled) => spilled,
        }
    }
}

impl<T: Copy + Default, const N: usize> Default for Few<T, N> {
    fn default() -> Self {
        Self::new()
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
