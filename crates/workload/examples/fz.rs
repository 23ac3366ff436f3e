//! tmp
use framewright_workload::*;
fn main(){ let mut s=std::env::args().nth(3).map_or(1,|x|x.parse::<u64>().unwrap()); let f=std::env::args().nth(1).unwrap(); let n:u64=std::env::args().nth(2).unwrap().parse().unwrap();
 let base=std::fs::read(&f).unwrap(); let mut r=move||{ s^=s<<13; s^=s>>7; s^=s<<17; s.wrapping_mul(0x2545F4914F6CDD1D) };
 let mut c=std::collections::BTreeMap::new(); let mut slow=0.0f64;
 for _ in 0..n { let mut b=base.clone(); for _ in 0..1+r()%8 { let k= if r()%2==0 {b.len()-1-(r() as usize%b.len().min(1500))} else {r() as usize%b.len()}; match r()%4 {0=>b[k]=r() as u8, 1=>b[k]^=1<<(r()%8), 2=>b[k]=0xff, _=>{ b[k]=b[k].wrapping_add(1);} } }
  if r()%10==0 { let k=r() as usize%b.len(); b.truncate(k); }
  let t=std::time::Instant::now();
  let e = if f.ends_with("parquet") { trace::Trace::read_bytes(&b,"f").map(|_|()) } else { import::from_bytes(&b,"f").map(|_|()) };
  let d=t.elapsed().as_secs_f64(); if d>slow { slow=d; println!("slow {d} {:?}", e.as_ref().err().map(|e|e.to_string())); if d>1.0 {std::fs::write("/tmp/slow.bin",&b).unwrap();} }
  let k=match e {Ok(())=>"ok".to_string(),Err(e)=>{let e=e.to_string(); assert!(!e.contains('\n')); if e.contains("cannot be decoded: ") && !e.contains("metadata") {e} else {e.chars().filter(|c|!c.is_ascii_digit()).take(60).collect()}}}; *c.entry(k).or_insert(0)+=1; }
 for (k,v) in c { println!("{v} {k}"); } }
