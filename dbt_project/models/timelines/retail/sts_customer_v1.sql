{#- Written by `lakehouse scaffold`, its own while unchanged: a6616b1301daf150 -#}
{{ timeline(source_model='sts_customer', src_pk='hk_customer', src_hashdiff='hd_status') }}
