/* Hand-written stand-ins for the part of the Ascend runtime (libascendcl) that torch_npu really calls.
 * "Device memory" is host memory; streams execute synchronously (i.e. nothing is ever pending);
 * a capture is a counter.  The prototypes come from the headers the wheel itself ships (torch_npu/include/acl). */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <stdarg.h>
#include <pthread.h>
#include <unistd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <glob.h>
#include "acl/acl.h"
#include "acl/acl_rt.h"
#include "acl/acl_mdl.h"
#include "acl/acl_op_compiler.h"

#define EXP __attribute__((visibility("default")))
static int g_trace = -1;
static void tr(const char *f, ...) {
    if (g_trace < 0) g_trace = getenv("NPU_STUB_TRACE") ? atoi(getenv("NPU_STUB_TRACE")) : 0;
    if (!g_trace) return;
    va_list a; va_start(a, f); fputs("[aclstub] ", stderr); vfprintf(stderr, f, a); fputc('\n', stderr); va_end(a);
}
EXP void npu_stub_trace_auto(const char *n) { tr("auto %s", n); }

/* ---- counters readable from Python through ctypes ---- */
EXP long npu_stub_n_malloc, npu_stub_n_free, npu_stub_n_memcpy, npu_stub_n_capture_begin, npu_stub_n_capture_end,
         npu_stub_n_execute, npu_stub_n_tgrp_begin, npu_stub_n_tgrp_end, npu_stub_n_tupd_begin, npu_stub_n_tupd_end,
         npu_stub_n_stream, npu_stub_n_event, npu_stub_n_sync, npu_stub_n_ri_destroy;
/* optional hook: called with the RI handle at aclmdlRIExecuteAsync; set from Python with ctypes */
typedef void (*npu_stub_hook)(void *ri);
EXP npu_stub_hook npu_stub_on_execute;
EXP void npu_stub_set_on_execute(npu_stub_hook h) { npu_stub_on_execute = h; }
EXP npu_stub_hook npu_stub_on_destroy;
/* state the simulator (npu_sim.cpp) reads: capture under way, open task group, task group being updated, memcpy hook */
EXP __thread void *npu_stub_active_ri, *npu_stub_active_grp, *npu_stub_update_grp;
EXP void (*npu_stub_on_memcpy)(void *dst, const void *src, unsigned long n);
EXP void *npu_stub_issue(const void *s);

/* graphs that wait for a value nobody has written: a synchronisation would hang, so it fails */
EXP long npu_stub_waiting;
EXP void (*npu_stub_on_value)(void *address, uint64_t value, int waits);
static aclError synchronised(void) { npu_stub_n_sync++; return npu_stub_waiting ? 507046 : 0; }

/* ---- lifecycle ---- */
EXP aclError aclInit(const char *p) { tr("aclInit %s", p ? p : "(null)"); return 0; }
EXP aclError aclFinalize() { return 0; }
EXP const char *aclrtGetSocName() { const char *s = getenv("NPU_STUB_SOC"); return s ? s : "Ascend910B3"; }
EXP const char *aclGetRecentErrMsg() { return "npu stub: no error message"; }
EXP aclError aclrtGetDeviceCount(uint32_t *c) { const char *s = getenv("NPU_STUB_DEVICES"); *c = s ? atoi(s) : 1; return 0; }
#define MOST_DEVICES 16
static __thread int t_dev = 0;
EXP aclError aclrtGetDevice(int32_t *d) { *d = t_dev; return 0; }
EXP aclError aclrtSetDevice(int32_t d) { if (d < 0 || d >= MOST_DEVICES) return 107001; t_dev = d; return 0; }
EXP aclError aclrtResetDevice(int32_t d) { (void)d; return 0; }
/* one context per device, so that a thread's context and its device are one thing */
static int g_ctx[MOST_DEVICES];
EXP aclError aclrtGetCurrentContext(aclrtContext *c) { *c = (void *)&g_ctx[t_dev]; return 0; }
EXP aclError aclrtSetCurrentContext(aclrtContext c) { int *x = c; if (x < g_ctx || x >= g_ctx + MOST_DEVICES) return 107002; t_dev = (int)(x - g_ctx); return 0; }
EXP aclError aclrtGetPrimaryCtxState(int32_t d, uint32_t *f, int32_t *a) { (void)d; if (f) *f = 0; if (a) *a = 1; return 0; }
EXP aclError aclrtGetLogicDevIdByUserDevId(const int32_t u, int32_t *const l) { *l = u; return 0; }
EXP void npu_stub_note(const char *what, const void *on, const void *stream);
EXP aclError aclrtSynchronizeDevice(void) { npu_stub_note("synchronize device", NULL, NULL); return synchronised(); }
EXP aclError aclrtSynchronizeDeviceWithTimeout(int32_t t) { (void)t; return aclrtSynchronizeDevice(); }
EXP aclError aclrtSynchronizeStream(aclrtStream s) { npu_stub_note("synchronize", NULL, s); return synchronised(); }
EXP aclError aclrtSynchronizeStreamWithTimeout(aclrtStream s, int32_t t) { (void)t; return aclrtSynchronizeStream(s); }
EXP aclError aclrtDeviceCanAccessPeer(int32_t *c, int32_t a, int32_t b) { (void)a; (void)b; *c = 0; return 0; }
EXP aclError aclGetDeviceCapability(uint32_t d, aclDeviceInfo i, int64_t *v) { (void)d; (void)i; *v = 24; return 0; }
EXP aclError aclrtGetDeviceInfo(uint32_t d, aclrtDevAttr a, int64_t *v) { (void)d; (void)a; *v = 24; return 0; }
EXP aclError aclGetCannAttribute(aclCannAttr a, int32_t *v) { (void)a; *v = 0; return 0; }
EXP aclError aclGetCannAttributeList(const aclCannAttr **l, size_t *n) { *l = NULL; *n = 0; return 0; }
EXP aclError aclrtPeekAtLastError(aclrtLastErrLevel l) { (void)l; return 0; }
EXP aclError aclrtGetLastError(aclrtLastErrLevel l) { (void)l; return 0; }
static const char *cann(void) { const char *s = getenv("NPU_STUB_CANN"); return s ? s : "9.0.0"; }
EXP aclError aclsysGetCANNVersion(aclCANNPackageName n, aclCANNPackageVersion *v) {
    (void)n; memset(v, 0, sizeof *v);
    snprintf(v->version, sizeof v->version, "%s", cann());
    sscanf(cann(), "%7[0-9].%7[0-9].%7[0-9]", v->majorVersion, v->minorVersion, v->releaseVersion);
    return 0;
}
EXP aclError aclsysGetVersionStr(char *n, char *v) { (void)n; strcpy(v, cann()); return 0; }
EXP size_t aclGetCompileoptSize(aclCompileOpt o) { (void)o; return 8; }
EXP aclError aclGetCompileopt(aclCompileOpt o, char *v, size_t l) { (void)o; if (l) strncpy(v, "0", l); return 0; }

/* ---- memory ---- */
static size_t g_used;
static aclError amalloc(void **p, size_t n) {
    npu_stub_n_malloc++;
    void *q = NULL; if (posix_memalign(&q, 512, n ? n : 512)) return 207001;
    *p = q; tr("malloc %zu -> %p", n, q); return 0;
}
EXP aclError aclrtMalloc(void **p, size_t n, aclrtMemMallocPolicy x) { (void)x; return amalloc(p, n); }
EXP aclError aclrtMallocAlign32(void **p, size_t n, aclrtMemMallocPolicy x) { (void)x; return amalloc(p, n); }
EXP aclError aclrtFree(void *p) { npu_stub_n_free++; free(p); return 0; }
EXP aclError aclrtMallocHost(void **p, size_t n) { return amalloc(p, n); }
EXP aclError aclrtMallocHostWithCfg(void **p, uint64_t n, aclrtMallocConfig *c) { (void)c; return amalloc(p, n); }
EXP aclError aclrtFreeHost(void *p) { free(p); return 0; }
EXP aclError aclrtMemcpy(void *d, size_t m, const void *s, size_t n, aclrtMemcpyKind k) { (void)m; (void)k; npu_stub_n_memcpy++; memmove(d, s, n); return 0; }
EXP aclError aclrtMemcpyAsync(void *d, size_t m, const void *s, size_t n, aclrtMemcpyKind k, aclrtStream st) { (void)m; (void)k; npu_stub_n_memcpy++; if (npu_stub_issue(st) && npu_stub_on_memcpy) npu_stub_on_memcpy(d, s, n); else memmove(d, s, n); return 0; }
EXP aclError aclrtMemset(void *d, size_t m, int32_t v, size_t n) { (void)m; memset(d, v, n); return 0; }
EXP aclError aclrtMemsetAsync(void *d, size_t m, int32_t v, size_t n, aclrtStream s) { (void)m; (void)s; memset(d, v, n); return 0; }
EXP aclError aclrtGetMemInfo(aclrtMemAttr a, size_t *f, size_t *t) { (void)a; *t = (size_t)8 << 30; *f = *t - g_used; return 0; }
EXP aclError aclrtPointerGetAttributes(const void *p, aclrtPtrAttributes *a) { (void)p; memset(a, 0, sizeof *a); a->location.type = ACL_MEM_LOCATION_TYPE_HOST; return 0; }
EXP aclError aclrtReserveMemAddress(void **v, size_t n, size_t al, void *e, uint64_t f) { (void)al; (void)e; (void)f; *v = mmap(0, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0); return *v == MAP_FAILED ? 207001 : 0; }
EXP aclError aclrtReleaseMemAddress(void *v) { (void)v; return 0; }
EXP aclError aclrtMallocPhysical(aclrtDrvMemHandle *h, size_t n, const aclrtPhysicalMemProp *p, uint64_t f) { (void)n; (void)p; (void)f; *h = (aclrtDrvMemHandle)malloc(8); return 0; }
EXP aclError aclrtFreePhysical(aclrtDrvMemHandle h) { free(h); return 0; }
EXP aclError aclrtMapMem(void *v, size_t n, size_t o, aclrtDrvMemHandle h, uint64_t f) { (void)v; (void)n; (void)o; (void)h; (void)f; return 0; }
EXP aclError aclrtUnmapMem(void *v) { (void)v; return 0; }

/* ---- what is issued to which stream, in order, while a test asks for it ---- */
static char *g_log; static size_t g_log_size; static FILE *g_log_file;
EXP void npu_stub_log_start(void) { free(g_log); g_log = NULL; g_log_file = open_memstream(&g_log, &g_log_size); }
EXP const char *npu_stub_log_stop(void) { if (g_log_file) fclose(g_log_file); g_log_file = NULL; return g_log ? g_log : ""; }
EXP void npu_stub_note(const char *what, const void *on, const void *stream) { if (g_log_file) fprintf(g_log_file, "%s\t%p\t%p\n", what, on, stream); }

/* ---- streams and events ---- */
/* A stream takes part in a capture from the moment it waits for an event of a stream that does. What is issued to any other
 * stream runs at once. `done` counts what is known to be over, by stream: at the end of a capture the stream that began it
 * must know of all work of the others. */
#define MOST_STREAMS 256
typedef struct { int id; int capturing; void *ri; uint32_t lim[2]; unsigned done[MOST_STREAMS]; } S;
typedef struct { size_t id; int recorded; void *ri; unsigned done[MOST_STREAMS]; } E;
static S *g_streams[MOST_STREAMS];
static void learn(unsigned *known, const unsigned *other) { for (int i = 0; i < MOST_STREAMS; i++) if (other[i] > known[i]) known[i] = other[i]; }
static int g_sid = 0;
static S g_null = {0, 0, 0, {24, 48}, {0}};
static S *S_(aclrtStream s) { return s ? (S *)s : &g_null; }
static aclError mkstream(aclrtStream *s) { S *x = calloc(1, sizeof *x); x->id = ++g_sid; if (x->id < MOST_STREAMS) g_streams[x->id] = x; x->lim[0] = 24; x->lim[1] = 48; npu_stub_n_stream++; *s = (aclrtStream)x; return 0; }
EXP aclError aclrtCreateStream(aclrtStream *s) { return mkstream(s); }
EXP aclError aclrtCreateStreamWithConfig(aclrtStream *s, uint32_t p, uint32_t f) { (void)p; (void)f; return mkstream(s); }
EXP aclError aclrtDestroyStream(aclrtStream s) { (void)s; return 0; }
EXP aclError aclrtDestroyStreamForce(aclrtStream s) { (void)s; return 0; }
EXP aclError aclrtStreamGetId(aclrtStream s, int32_t *i) { *i = S_(s)->id; return 0; }
EXP aclError aclrtStreamQuery(aclrtStream s, aclrtStreamStatus *st) { (void)s; *st = ACL_STREAM_STATUS_COMPLETE; return 0; }
EXP aclError aclrtGetStreamResLimit(aclrtStream s, aclrtDevResLimitType t, uint32_t *v) { *v = S_(s)->lim[t == ACL_RT_DEV_RES_VECTOR_CORE]; return 0; }
EXP aclError aclrtSetStreamResLimit(aclrtStream s, aclrtDevResLimitType t, uint32_t v) { npu_stub_note(t == ACL_RT_DEV_RES_VECTOR_CORE ? "vector cores" : "cube cores", (void *)(size_t)v, s); S_(s)->lim[t == ACL_RT_DEV_RES_VECTOR_CORE] = v; return 0; }
EXP aclError aclrtGetDeviceResLimit(int32_t d, aclrtDevResLimitType t, uint32_t *v) { (void)d; *v = t == ACL_RT_DEV_RES_VECTOR_CORE ? 48 : 24; return 0; }
EXP aclError aclrtGetResInCurrentThread(aclrtDevResLimitType t, uint32_t *v) { *v = t == ACL_RT_DEV_RES_VECTOR_CORE ? 48 : 24; return 0; }
/* what an ExternalEvent is made of: a word in memory that a graph waits for, and clears */
EXP aclError aclrtValueWait(void *a, uint64_t v, uint32_t f, aclrtStream s) { (void)f; npu_stub_note("external wait", NULL, s); if (npu_stub_on_value) npu_stub_on_value(a, v, 1); return 0; }
EXP aclError aclrtValueWrite(void *a, uint64_t v, uint32_t f, aclrtStream s) { (void)f; npu_stub_note(v ? "external record" : "external reset", NULL, s); if (npu_stub_on_value) npu_stub_on_value(a, v, 0); return 0; }
/* the capture that something issued to a stream becomes part of, or NULL */
EXP void *npu_stub_issue(const void *s) { S *x = S_((aclrtStream)s); if (!x->capturing) return NULL; if (x->id < MOST_STREAMS) x->done[x->id]++; return x->ri; }
static aclError mkevent(aclrtEvent *e) { E *x = calloc(1, sizeof *x); x->id = (size_t)++npu_stub_n_event; *e = x; return 0; }
EXP aclError aclrtCreateEvent(aclrtEvent *e) { return mkevent(e); }
EXP aclError aclrtCreateEventWithFlag(aclrtEvent *e, uint32_t f) { (void)f; return mkevent(e); }
EXP aclError aclrtCreateEventExWithFlag(aclrtEvent *e, uint32_t f) { (void)f; return mkevent(e); }
EXP aclError aclrtRecordEvent(aclrtEvent e, aclrtStream s) {
    E *x = e; S *y = S_(s); npu_stub_note("record", (void *)x->id, s);
    x->recorded = 1; x->ri = y->capturing ? y->ri : NULL; memcpy(x->done, y->done, sizeof x->done); return 0; }
EXP aclError aclrtStreamWaitEvent(aclrtStream s, aclrtEvent e) {
    E *x = e; S *y = S_(s); npu_stub_note("wait", (void *)x->id, s);
    if (!x->recorded) return 0;
    if (x->ri != npu_stub_active_ri) x->ri = NULL;  /* of a capture that has ended */
    if (y->capturing && x->ri != y->ri) return 107026;  /* the work is no part of this capture */
    if (!y->capturing && x->ri) { y->capturing = 2; y->ri = x->ri; }
    if (y->capturing) learn(y->done, x->done);
    return 0; }
EXP aclError aclrtStreamWaitEventWithTimeout(aclrtStream s, aclrtEvent e, int32_t t) { (void)t; return aclrtStreamWaitEvent(s, e); }
EXP aclError aclrtDestroyEvent(aclrtEvent e) { free(e); return 0; }
EXP aclError aclrtQueryEventStatus(aclrtEvent e, aclrtEventRecordedStatus *s) { (void)e; *s = ACL_EVENT_RECORDED_STATUS_COMPLETE; return 0; }
EXP aclError aclrtQueryEventWaitStatus(aclrtEvent e, aclrtEventWaitStatus *s) { (void)e; *s = ACL_EVENT_WAIT_STATUS_COMPLETE; return 0; }
EXP aclError aclrtEventElapsedTime(float *ms, aclrtEvent a, aclrtEvent b) { (void)a; (void)b; *ms = 0; return 0; }

/* ---- model runtime instance (graph capture) ---- */
EXP aclError aclmdlRICaptureBegin(aclrtStream s, aclmdlRICaptureMode m) {
    (void)m; S *x = S_(s); if (x->capturing) return 107000; x->capturing = 1; x->ri = calloc(1, 64); npu_stub_active_ri = x->ri; npu_stub_n_capture_begin++; tr("captureBegin stream %d", x->id); return 0; }
EXP aclError aclmdlRICaptureEnd(aclrtStream s, aclmdlRI *r) {
    S *x = S_(s); if (x->capturing != 1) return 107000;
    aclError unjoined = 0;
    for (int i = 0; i < MOST_STREAMS; i++) { S *y = g_streams[i]; if (!y || y->capturing != 2 || y->ri != x->ri) continue; y->capturing = 0; if (y->done[i] > x->done[i]) unjoined = 107025; }
    x->capturing = 0; npu_stub_active_ri = NULL; if (unjoined) return unjoined; *r = (aclmdlRI)x->ri; npu_stub_n_capture_end++; tr("captureEnd stream %d ri %p", x->id, x->ri); return 0; }
EXP aclError aclmdlRICaptureGetInfo(aclrtStream s, aclmdlRICaptureStatus *st, aclmdlRI *r) {
    S *x = S_(s); if (st) *st = x->capturing ? ACL_MODEL_RI_CAPTURE_STATUS_ACTIVE : ACL_MODEL_RI_CAPTURE_STATUS_NONE; if (r) *r = x->capturing ? (aclmdlRI)x->ri : NULL; return 0; }
EXP aclError aclmdlRICaptureThreadExchangeMode(aclmdlRICaptureMode *m) { (void)m; return 0; }
EXP aclError aclmdlRICaptureTaskGrpBegin(aclrtStream s) { npu_stub_note("group begin", NULL, s); npu_stub_n_tgrp_begin++; npu_stub_active_grp = malloc(8); return 0; }
EXP aclError aclmdlRICaptureTaskGrpEnd(aclrtStream s, aclrtTaskGrp *h) { npu_stub_note("group end", NULL, s); npu_stub_n_tgrp_end++; *h = (aclrtTaskGrp)npu_stub_active_grp; npu_stub_active_grp = NULL; return 0; }
EXP aclError aclmdlRICaptureTaskUpdateBegin(aclrtStream s, aclrtTaskGrp h) { npu_stub_note("update begin", NULL, s); npu_stub_update_grp = (void *)h; npu_stub_n_tupd_begin++; return 0; }
EXP aclError aclmdlRICaptureTaskUpdateEnd(aclrtStream s) { npu_stub_note("update end", NULL, s); npu_stub_n_tupd_end++; npu_stub_update_grp = NULL; return 0; }
EXP aclError aclmdlRIExecuteAsync(aclmdlRI r, aclrtStream s) { npu_stub_note("replay", (void *)r, s); npu_stub_n_execute++; tr("execute ri %p", (void *)r); if (npu_stub_on_execute) npu_stub_on_execute((void *)r); return 0; }
EXP aclError aclmdlRIDestroy(aclmdlRI r) { npu_stub_n_ri_destroy++; if (npu_stub_on_destroy) npu_stub_on_destroy((void *)r); tr("RIDestroy %p", (void *)r); return 0; }
EXP aclError aclmdlRIGetId(aclmdlRI r, uint32_t *i) { (void)r; *i = 1; return 0; }
/* the trace of a graph: no kernels run here, so it is the one that a test has set */
EXP const char *npu_stub_graph_json = "[]";
EXP aclError aclmdlRIDebugJsonPrint(aclmdlRI r, const char *p, uint32_t f) { (void)r; (void)f; FILE *o = fopen(p, "w"); if (o) { fputs(npu_stub_graph_json, o); fclose(o); } return 0; }
EXP aclError aclmdlRIDebugPrint(aclmdlRI r) { (void)r; return 0; }

/* ---- static kernels ---- */
/* While operators are dumped, device.cpp describes each that runs in a file of this folder. The kernels of installed packages
 * are used from the moment they are selected: here they are counted, since the CPU computes the results anyway. */
EXP char npu_stub_dump_folder[4096];
EXP long npu_stub_static_kernels;
EXP aclError aclopStartDumpArgs(uint32_t type, const char *path) {
    (void)type; npu_stub_note("dump begin", NULL, NULL);
    snprintf(npu_stub_dump_folder, sizeof npu_stub_dump_folder, "%s/%d_opcompile", path, getpid());
    return mkdir(npu_stub_dump_folder, 0700) && access(npu_stub_dump_folder, W_OK) ? 500000 : 0; }
EXP aclError aclopStopDumpArgs(uint32_t type) { (void)type; npu_stub_note("dump end", NULL, NULL); npu_stub_dump_folder[0] = 0; return 0; }
static int select_kernels(const char *root) {
    char pattern[4200]; snprintf(pattern, sizeof pattern, "%s/opp/static_kernel/ai_core/*/*.o", root); glob_t found;
    npu_stub_static_kernels = glob(pattern, 0, NULL, &found) ? 0 : (long)found.gl_pathc;
    npu_stub_note("select kernels", (void *)npu_stub_static_kernels, NULL); return 0; }
EXP int aclnnReselectStaticKernel(void) { const char *home = getenv("ASCEND_HOME_PATH"); return home ? select_kernels(home) : 161001; }
EXP int aclnnReselectStaticKernelWithPath(const char *path) { return select_kernels(path); }

/* host callbacks: run at once */
EXP aclError aclrtLaunchCallback(aclrtCallback fn, void *u, aclrtCallbackBlockType b, aclrtStream s) { (void)b; (void)s; fn(u); return 0; }
EXP aclError aclrtProcessReport(int32_t t) { usleep(t > 0 ? (t > 50 ? 50000 : t * 1000) : 1000); return 0; }

/* securec */
EXP int strcpy_s(char *d, size_t n, const char *s) { if (!d || !s || strlen(s) >= n) return 22; strcpy(d, s); return 0; }
EXP int vsnprintf_s(char *d, size_t n, size_t c, const char *f, va_list a) { (void)c; return vsnprintf(d, n, f, a); }
EXP int snprintf_s(char *d, size_t n, size_t c, const char *f, ...) { (void)c; va_list a; va_start(a, f); int r = vsnprintf(d, n, f, a); va_end(a); return r; }
EXP void aclAppLog(aclLogLevel l, const char *fn, const char *f, uint32_t ln, const char *fmt, ...) {
    if (g_trace < 0) tr("init"); if (g_trace < 2) return; va_list a; va_start(a, fmt); fprintf(stderr, "[aclAppLog %d %s:%u %s] ", l, f, ln, fn); vfprintf(stderr, fmt, a); fputc('\n', stderr); va_end(a); }
EXP uint64_t MsprofSysCycleTime(void) { return 0; }
EXP uint64_t MsprofGetHashId(const char *s, size_t n) { (void)s; (void)n; return 1; }
