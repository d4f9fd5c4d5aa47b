#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>
#include <fcntl.h>
static double cpu(void){struct timespec t;clock_gettime(CLOCK_THREAD_CPUTIME_ID,&t);return t.tv_sec+1e-9*t.tv_nsec;}
#define N ((size_t)256<<20)
static char buf[1<<20];
int main(int c,char**v){
 memset(buf,7,sizeof buf);
 for(int round=0;round<3;round++){
  for(int mode=0;mode<8;mode++){
   double t=cpu(); const char*name="";
   if(mode<4){
    char*p=mmap(0,N+(2<<20),PROT_READ|PROT_WRITE,MAP_PRIVATE|MAP_ANONYMOUS,-1,0);
    char*q=(char*)(((size_t)p+(2<<20)-1)&~(size_t)((2<<20)-1));
    t=cpu();
    if(mode==0){name="anon touch";madvise(q,N,MADV_NOHUGEPAGE);for(size_t i=0;i<N;i+=4096)q[i]=1;}
    if(mode==1){name="anon populate 128K";for(size_t i=0;i<N;i+=1<<17)madvise(q+i,1<<17,MADV_POPULATE_WRITE);}
    if(mode==2){name="anon populate 2M small";for(size_t i=0;i<N;i+=2<<20)madvise(q+i,2<<20,MADV_POPULATE_WRITE);}
    if(mode==3){name="huge";madvise(q,N,MADV_HUGEPAGE);for(size_t i=0;i<N;i+=2<<20)madvise(q+i,4096,MADV_POPULATE_WRITE);}
    double e=cpu()-t; t=cpu();
    for(size_t i=0;i+12288<N;i+=12288)memcpy(q+i,buf,12288);
    printf("%-26s %.3f us/page, then write %.3f\n",name,e/(N/4096)*1e6,(cpu()-t)/(N/4096)*1e6);
    munmap(p,N+(2<<20));
   } else {
    int fd; 
    if(mode==4){name="memfd pwrite 12K";fd=memfd_create("x",0);}
    else if(mode==5){name="ext4 pwrite 12K";fd=open("/tmp/wt-perf-x/file",O_RDWR|O_CREAT|O_TRUNC,0600);posix_fallocate(fd,0,N);}
    else if(mode==6){name="memfd pwrite 256K";fd=memfd_create("x",0);}
    else {name="ext4 pwrite 256K";fd=open("/tmp/wt-perf-x/file",O_RDWR|O_CREAT|O_TRUNC,0600);posix_fallocate(fd,0,N);}
    size_t step=mode<6?12288:262144;
    t=cpu();
    for(size_t i=0;i+step<=N;i+=step)if(pwrite(fd,buf,step,i)<0)perror("w");
    double e=cpu()-t;
    char*p=mmap(0,N,PROT_READ,MAP_SHARED,fd,0); t=cpu(); volatile char s=0;
    for(size_t i=0;i+step<=N;i+=4096)s+=p[i];
    printf("%-26s %.3f us/page, then fault-in read %.3f\n",name,e/(N/4096)*1e6,(cpu()-t)/(N/4096)*1e6);
    munmap(p,N); if(mode%2)ftruncate(fd,0); close(fd);
   }
  }
 }
 unlink("/tmp/wt-perf-x/file");
}
