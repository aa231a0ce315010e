#include <cstring>
#include <chrono>
#include <cstdio>
#include <vector>
#include <cstdlib>
int main(){ size_t n=256<<20; char*a=(char*)aligned_alloc(64,n),*b=(char*)aligned_alloc(64,n); for(size_t i=0;i<n;i++)a[i]=i*7; memset(b,1,n);
 for(size_t c: {(size_t)256<<10,(size_t)n}){ double best=1e9; for(int r=0;r<15;r++){auto t=std::chrono::steady_clock::now(); for(size_t i=0;i<n;i+=c)memcpy(b+i,a+i,c); double d=std::chrono::duration<double>(std::chrono::steady_clock::now()-t).count(); if(d<best)best=d; printf("%.1f ",n/d/1e9);} printf("\nchunk %zu best %.2f GB/s\n",c,n/best/1e9);} }
