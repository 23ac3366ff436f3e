//! tmp
use framewright_workload::record::*;
fn main(){ let a:Vec<_>=std::env::args_os().skip(1).collect();
 let r=record(&a[1..], &Options::default()); match r { Ok(r)=>{ eprintln!("{:?} status {:?} sys {} threads {} events {}", r.trace.meta, r.status, r.system_events, r.threads, r.trace.events.len());
 for k in framewright_workload::trace::EventKind::ALL { eprintln!("{k}: {}", r.trace.count(k)); }
 r.trace.write(a[0].as_ref()).unwrap(); let t=framewright_workload::trace::Trace::read(a[0].as_ref()).unwrap(); eprintln!("{}", t.events==r.trace.events); } Err(e)=>{eprintln!("{e}");std::process::exit(1)} } }
