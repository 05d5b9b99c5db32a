//! The shared store on real clusters: three primaries, three replicas.

mod conforms;
